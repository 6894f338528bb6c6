"""What SGLang's scheduler processes do otherwise here: forms without its detokenizer, blocks that move on a CPU."""

import importlib
from typing import Any

from ..adapter.arguments import has_tokenizer


def run_scheduler_process(server_args: Any, *arguments: Any, **named: Any) -> Any:
    """SGLang's own function, after what these arguments need."""
    from sglang.srt.managers.scheduler import run_scheduler_process as run

    if compiles_forms(server_args) and server_args.skip_tokenizer_init:
        _compile_forms(server_args)
    if server_args.device == "cpu" and server_args.disaggregation_mode != "null":
        _take_main_memory()
    return run(server_args, *arguments, **named)


def compiles_forms(server_args: Any) -> bool:
    """Whether it keeps answers to forms. `server_args`: of SGLang, with None for what it chooses on its own."""
    if server_args.grammar_backend == "none" or server_args.is_embedding:
        return False
    return not server_args.skip_tokenizer_init or has_tokenizer(_tokenizer(server_args))


def _tokenizer(server_args: Any) -> Any:
    return server_args.tokenizer_path or server_args.model_path


def _compile_forms(server_args: Any) -> None:
    """Give the scheduler what compiles forms, with a tokenizer for that alone.

    SGLang has both or none. With both, each token goes through a process that makes text of it, which is not needed.
    """
    forms = importlib.import_module("sglang.srt.constrained.grammar_manager")
    read = importlib.import_module("sglang.srt.utils.hf_transformers.tokenizer").get_tokenizer
    begin = forms.GrammarManager.__init__

    def init(self: Any, scheduler: Any) -> None:
        begin(self, scheduler)
        config = scheduler.model_config
        tokenizer = read(
            _tokenizer(server_args),
            tokenizer_mode=server_args.tokenizer_mode,
            trust_remote_code=server_args.trust_remote_code,
            tokenizer_revision=server_args.revision,
        )
        self.grammar_backend = forms.create_grammar_backend(
            server_args, tokenizer, config.vocab_size, config.hf_eos_token_id
        )

    forms.GrammarManager.__init__ = init


def _take_main_memory() -> None:
    """SGLang registers its KV cache as "VRAM", whatever it computes on. NIXL's UCX refuses main memory as that."""
    agent = importlib.import_module("nixl._api").nixl_agent
    begin = agent.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        self.nixl_mems["VRAM"] = self.nixl_mems["DRAM"]

    agent.__init__ = init
