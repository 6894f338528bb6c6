"""Vectors of texts, and how alike texts are."""

from collections.abc import Sequence

from dynamod.extension.feature import Feature


def _endpoints() -> Sequence[object]:
    from .endpoints import Embeddings
    from .scores import PlainRerank, PlainScores, Rerank, Scores, SecondRerank

    return Embeddings(), Scores(), Rerank(), PlainScores(), PlainRerank(), SecondRerank()


FEATURE = Feature("embeddings", "vectors of texts: /v1/embeddings, /v1/score, /v1/rerank", endpoints=_endpoints)
