/* A program that behaves like nvidia-cuda-mps-control, as far as a supervisor sees it.
 *
 *   -d [-multiuser-server]   start the daemon for CUDA_MPS_PIPE_DIRECTORY in the background
 *   (none)                   send the commands of stdin to it: get_server_list, get_client_list PID, quit; "say TEXT"
 *                            writes to server.log
 *
 * Files in the directory KNOBS steer it: `fail` (its content is the message of a start that fails), `hang` (the daemon
 * does not answer), `clients` (its content is the list of clients of the one server), `old` (-multiuser-server is unknown), `slow` (a start takes that many milliseconds).
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static char line[1024];

static int knob(const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", KNOBS, name);
    FILE *file = fopen(path, "r");
    line[0] = 0;
    if (!file)
        return 0;
    if (!fgets(line, sizeof line, file))
        line[0] = 0;
    fclose(file);
    return 1;
}

static const char *in_directory(const char *variable, const char *name)
{
    static char path[4096];
    const char *directory = getenv(variable);
    snprintf(path, sizeof path, "%s/%s", directory ? directory : "/nowhere", name);
    return path;
}

static void note(const char *file, const char *who, const char *text)
{
    FILE *log = fopen(in_directory("CUDA_MPS_LOG_DIRECTORY", file), "a");
    if (log) {
        fprintf(log, "[2026-11-16 09:00:00.000 %s %6d] %s\n", who, getpid(), text);
        fclose(log);
    }
}

static struct sockaddr_un address(void)
{
    struct sockaddr_un found = {.sun_family = AF_UNIX};
    snprintf(found.sun_path, sizeof found.sun_path, "%s", in_directory("CUDA_MPS_PIPE_DIRECTORY", "control"));
    return found;
}

static int connected(void)
{
    struct sockaddr_un to = address();
    int end = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(end, (struct sockaddr *)&to, sizeof to) == 0)
        return end;
    close(end);
    return -1;
}

static void serve(int listener)
{
    char given[1024];
    note("control.log", "Control", "Starting control daemon using socket");
    for (;;) {
        struct pollfd ready = {.fd = listener, .events = POLLIN};
        poll(&ready, 1, 500);
        /* The test is over, whatever became of it. */
        if (access(KNOBS, F_OK))
            exit(0);
        if (!(ready.revents & POLLIN))
            continue;
        int peer = accept(listener, NULL, NULL);
        if (peer < 0)
            continue;
        while (knob("hang"))
            usleep(50000);
        ssize_t size = read(peer, given, sizeof given - 1);
        given[size > 0 ? size : 0] = 0;
        given[strcspn(given, "\n")] = 0;
        if (strncmp(given, "say ", 4) == 0)
            note("server.log", "Server", given + 4);
        int quits = strcmp(given, "quit") == 0;
        if (quits) {
            note("control.log", "Control", "Exit");
            unlink(in_directory("CUDA_MPS_PIPE_DIRECTORY", "nvidia-cuda-mps-control.pid"));
        }
        if (strncmp(given, "get_", 4) == 0 && knob("clients")) {
            const char *answer = strcmp(given, "get_server_list") ? line : "4711\n";
            (void)!write(peer, answer, strlen(answer));
        }
        (void)!write(peer, "\n", 1);
        close(peer);
        if (quits)
            exit(0);
    }
}

static int start(int argc, char **argv)
{
    if (knob("slow"))
        usleep(1000 * atoi(line));
    if (argc > 2 && knob("old")) {
        printf("Unknown option: %s\n", argv[2]);
        return 1;
    }
    if (knob("fail")) {
        printf("%s", line);
        return 1;
    }
    int other = connected();
    if (other >= 0) {
        printf("An instance of this daemon is already running\n");
        return 1;
    }
    struct sockaddr_un at = address();
    unlink(at.sun_path);
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 8)) {
        printf("cannot bind %s: %s\n", at.sun_path, strerror(errno));
        return 1;
    }
    chmod(at.sun_path, 0666);
    pid_t child = fork();
    if (child == 0) {
        setsid();
        FILE *pid = fopen(in_directory("CUDA_MPS_PIPE_DIRECTORY", "nvidia-cuda-mps-control.pid"), "w");
        if (pid) {
            fprintf(pid, "%d\n", getpid());
            fclose(pid);
        }
        FILE *environment = fopen(in_directory("CUDA_MPS_PIPE_DIRECTORY", "started-with"), "w");
        if (environment) {
            fprintf(environment, "uid=%d visible=%s options=%s\n", getuid(), getenv("CUDA_VISIBLE_DEVICES"),
                    argc > 2 ? argv[2] : "");
            fclose(environment);
        }
        /* Its standard output stays open, as a careless daemon's does. */
        serve(listener);
    }
    return 0;
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    if (argc > 1 && strcmp(argv[1], "-d") == 0)
        return start(argc, argv);
    while (fgets(line, sizeof line, stdin)) {
        char answer[1024];
        int end = connected();
        if (end < 0) {
            printf("Cannot find MPS control daemon process\n");
            return 1;
        }
        (void)!write(end, line, strlen(line));
        ssize_t size;
        while ((size = read(end, answer, sizeof answer)) > 0)
            (void)!write(1, answer, (size_t)size);
        close(end);
    }
    return 0;
}
