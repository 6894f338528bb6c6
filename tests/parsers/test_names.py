"""The names of parsers that Dynamo, vLLM and SGLang know: people type them here too."""

import pytest

from dynamod.parsers import AUTO, NONE, check_names

TOOLS = {
    "Dynamo 1.6.1": """
        deepseek-v4 deepseek_v3 deepseek_v3_1 deepseek_v3_2 deepseek_v4 deepseek_v41 deepseekv4 default gemma-4 gemma4
        glm45 glm47 harmony hermes inkling jamba kimi-k3 kimi_k2 kimi_k25 kimi_k3 llama3_json minimax-m3 minimax-m3-nom
        minimax_m2 minimax_m3 minimax_m3_nom mistral muse muse_glimmer nemotron_deci nemotron_nano phi4 pythonic qwen25
        qwen3 qwen3_coder
    """,
    "vLLM 0.32.0": """
        apertus cohere_command3 cohere_command4 deepseek_v3 deepseek_v31 deepseek_v32 deepseek_v4 deepseek_v41 dots
        ernie45 functiongemma gemma4 gigachat3 glm45 glm47 granite granite-20b-fc granite4 hermes hf hunyuan_a13b hy_v3
        hy_v4 inkling internlm jamba k2_horizon kimi_k2 kimi_k3 lfm2 ling3 llama3_json llama4_json llama4_pythonic
        longcat mimo minicpm5 minimax_m2 minimax_m3 mistral muse_glimmer olmo3 openai phi4_mini_json plamo3 poolside_v1
        pythonic qwen3_coder qwen3_json qwen3_xml seed_oss step3 step3p5 xlam
    """,
    "vLLM 25e2befb, before the release": "solar_open2",
    "SGLang 0.5.23": """
        apertus2509 auto beam cohere_command4 deepseekv3 deepseekv31 deepseekv32 deepseekv4 deepseekv41 dots gemma4
        gigachat3 gigachat35 glm glm45 glm47 gpt-oss hermes hunyuan inkling interns1 iquest_q1 k2_horizon kimi_k2
        kimi_k3 lfm2 ling3 llama3 mimo minicpm5 minimax-m2 minimax-m3 mistral muse nanbeige poolside_v1 pythonic qwen
        qwen25 qwen3_coder response_template spark25 step3 step3p5 trinity
    """,
}
REASONING = {
    "Dynamo 1.6.1": """
        basic deepseek-v4 deepseek_r1 deepseek_v3 deepseek_v3_1 deepseek_v3_2 deepseek_v4 deepseek_v41 deepseekv4
        gemma-4 gemma4 glm45 glm47 gpt_oss granite inkling kimi kimi-k3 kimi_k2 kimi_k25 kimi_k3 minimax-m3
        minimax_append_think minimax_m2 minimax_m3 mistral muse muse_glimmer nemotron3 nemotron_deci nemotron_nano
        nemotron_v3 qwen3 qwen3_coder step3
    """,
    "vLLM 0.32.0": """
        cohere_command3 cohere_command4 deepseek_r1 deepseek_v3 deepseek_v4 deepseek_v41 ernie45 gemma4 glm45 glm47
        granite granite_thinking_parser hf holo2 hunyuan_a13b hy_v3 hy_v4 inkling k2_horizon kimi_k2 kimi_k3 ling3 mimo
        minicpmv minimax_m2 minimax_m2_append_think minimax_m3 mistral muse_glimmer nemotron_v3 olmo3 openai_gptoss
        plamo3 poolside_v1 qwen3 seed_oss step3 step3p5
    """,
    "vLLM c6cdf911, before the release": "solar_open2",
    "SGLang 0.5.23": """
        apertus2509 auto beam cohere_command4 deepseek-r1 deepseek-v3 deepseek-v4 deepseek-v41 dots gemma4 gigachat35
        glm45 gpt-oss granite_thinking_parser hunyuan inkling interns1 iquest_q1 k2_horizon kimi kimi_k2 kimi_k3 ling3
        mimo minimax minimax-append-think minimax-m3 mistral muse nanbeige nemotron_3 poolside_v1 qwen3 qwen3-thinking
        response_template step3 step3p5
    """,
}


@pytest.mark.parametrize(("system", "names"), TOOLS.items(), ids=TOOLS)
def test_every_parser_of_calls_has_its_name_here(system, names) -> None:
    for name in names.split():
        check_names(name, "")


@pytest.mark.parametrize(("system", "names"), REASONING.items(), ids=REASONING)
def test_every_parser_of_reasoning_has_its_name_here(system, names) -> None:
    for name in names.split():
        check_names("", name)


def test_no_name_is_also_said_by_a_word() -> None:
    for word in (*AUTO, NONE):
        check_names(word, word)
