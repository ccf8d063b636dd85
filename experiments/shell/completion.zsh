#compdef sparring sparring-worker sparring-server
# As completion.bash, for zsh.  Installed as site-functions/_sparring; or: copy it so into a folder of $fpath.

# The words that begin the lines of a help text: commands and options.
_sparring_listed() {
    "$@" --help 2>/dev/null | sed -nE 's/^  (--[a-z0-9-]+|[a-z_]+)( .*|$)/\1/p'
}

_sparring() {
    local word
    local -a program=($words[1]) listed=()

    for word in ${words[2,CURRENT-1]}; do
        case $word in
        sparring | sparring-worker | sparring-server) program=($word) ;; # behind launch's --
        [a-z]*)
            listed=(${(f)"$(_sparring_listed $program)"})
            (( ${listed[(Ie)$word]} )) && program+=($word)
            ;;
        esac
    done
    compadd -- ${(f)"$(_sparring_listed $program)"}
    [[ $words[CURRENT] == -* ]] || _files
}

_sparring
