"""The scripts with which shells complete the words of `dynamo-run`."""

COMPLETE = "_DYNAMO_RUN_COMPLETE"
"""Variable with a line up to the cursor: `dynamo-run` prints the words that may stand there, one per line."""

SCRIPTS = {
    # bash takes a word to begin after = and :
    "bash": f"""\
_dynamo_run() {{
    local line="${{COMP_LINE:0:COMP_POINT}}" IFS=$'\\n'
    local word="${{line##* }}"
    local before="${{word%"${{word##*[=:]}}"}}"
    COMPREPLY=($({COMPLETE}="$line" dynamo-run))
    COMPREPLY=("${{COMPREPLY[@]#"$before"}}")
}}
complete -o default -o nospace -F _dynamo_run dynamo-run
""",
    "zsh": f"""\
_dynamo_run() {{
    local -a found
    found=(${{(f)"$({COMPLETE}="${{words[1,CURRENT]}}" dynamo-run)"}})
    compadd -Q -S '' -- $found
    _files
}}
compdef _dynamo_run dynamo-run
""",
    "fish": f"complete -c dynamo-run -a '(env {COMPLETE}=(commandline -cp) dynamo-run)'\n",
}
"""What `dynamo-run --show-completion SHELL` prints."""
