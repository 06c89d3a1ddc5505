# What the tests in this folder share; sourced by them (sh).
number=0

is() { # NAME GOT WANT
    number=$((number + 1))
    if [ "$2" = "$3" ]; then
        echo "ok $number - $1"
    else
        echo "not ok $number - $1"
        printf 'got:\n%s\nwant:\n%s\n' "$2" "$3" | sed 's/^/# /'
    fi
}

result() { # NAME OK TEXT: passes where OK is 1
    number=$((number + 1))
    if [ "$2" = 1 ]; then
        echo "ok $number - $1"
    else
        echo "not ok $number - $1"
        echo "$3" | sed 's/^/# /'
    fi
}
