# Included where llama.cpp's own project begins. llama-cpp-python compiles llama.cpp's tools and their common library, too:
# more than half of all work, and dynamod loads libllama alone.
set(LLAMA_BUILD_COMMON OFF CACHE BOOL "dynamod loads libllama alone" FORCE)
