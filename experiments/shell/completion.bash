# Completes commands and options of sparring, sparring-worker and sparring-server in bash: they are what --help lists,
# so there is no second list of them.  Installed where bash-completion looks; or: source completion.bash

# The words that begin the lines of a help text: commands and options.
_sparring_listed() {
    "$@" --help 2>/dev/null | sed -nE 's/^  (--[a-z0-9-]+|[a-z_]+)( .*|$)/\1/p'
}

_sparring() {
    local word=${COMP_WORDS[COMP_CWORD]} i
    local -a command=("${COMP_WORDS[0]}") listed=()

    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${COMP_WORDS[i]} in
        sparring | sparring-worker | sparring-server) command=("${COMP_WORDS[i]}") ;; # behind launch's --
        [a-z]*)
            mapfile -t listed < <(_sparring_listed "${command[@]}")
            [[ " ${listed[*]} " == *" ${COMP_WORDS[i]} "* ]] && command+=("${COMP_WORDS[i]}")
            ;;
        esac
    done
    mapfile -t listed < <(_sparring_listed "${command[@]}")
    mapfile -t COMPREPLY < <(compgen -W "${listed[*]}" -- "$word")
    [[ $word == -* ]] || mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$word")
}

complete -o filenames -F _sparring sparring sparring-worker sparring-server
