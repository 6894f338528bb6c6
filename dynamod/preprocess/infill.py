"""Tokens by which a model fills in between two texts, and the prompt that has it do so."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

_FORMS = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
)
"""How vocabularies write the marker in front of the prefix, of the suffix, and of what is to be filled in."""

_ENDS = (
    *("<|endoftext|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>", "<|file_separator|>", "<file_sep>"),
    *("<fim_pad>", "<fim-pad>", "▁<EOT>"),
)
"""Tokens at which what was filled in ends, as llama.cpp has it; the model's own EOS is not needed."""

Markers = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Infill:
    """`markers`: ids in front of the prefix, the suffix and the middle. `ends`: ids that end the middle."""

    markers: Markers
    ends: tuple[int, ...]

    def prompt(self, prefix: str, suffix: str, bos: tuple[int, ...], encode: Callable[[str], list[int]]) -> list[int]:
        """The ids after which the model writes the middle; `bos`: what its prompts begin with."""
        before, between, last = self.markers
        return [*bos, before, *encode(prefix), between, *encode(suffix), last]


def infill_of(vocabulary: Mapping[str, int], known: Markers | None) -> Infill | None:
    """What a vocabulary has for it; None: nothing. `known`: what the model's own description says."""
    found = known or next(
        (
            (vocabulary[one], vocabulary[two], vocabulary[three])
            for one, two, three in _FORMS
            if {one, two, three} <= vocabulary.keys()
        ),
        None,
    )
    if found is None or max(found) >= len(vocabulary):
        return None
    return Infill(found, tuple([vocabulary[end] for end in _ENDS if end in vocabulary]))
