# As completion.bash, for fish.  Installed as vendor_completions.d/sparring.fish and so on; or: source completion.fish

# The words that begin the lines of a help text: commands and options.
function __sparring_listed
    $argv --help 2>/dev/null | string match -rg '^  (--[a-z0-9-]+|[a-z_]+)(?: .*|$)'
end

function __sparring_offered
    set -l words (commandline -opc)
    set -l program $words[1]
    for word in $words[2..]
        switch $word
            case sparring sparring-worker sparring-server # behind launch's --
                set program $word
            case '*'
                contains -- $word (__sparring_listed $program); and not string match -q -- '-*' $word; and set -a program $word
        end
    end
    __sparring_listed $program
end

for program in sparring sparring-worker sparring-server
    complete -c $program -a '(__sparring_offered)'
end
