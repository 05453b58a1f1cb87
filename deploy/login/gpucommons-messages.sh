# At login, show messages about GPUs that this user holds and does not use. Install it with:
#   install -m 0644 deploy/login/gpucommons-messages.sh /etc/profile.d/
# It prints nothing in a shell that is not interactive, without a message, or without an agent, and takes at most 2 s.
case $- in
    *i*)
        if command -v gpucommons >/dev/null 2>&1; then
            timeout 2 gpucommons me --messages 2>/dev/null || true
        fi
        ;;
esac
