/* Drives any server of nvshare's frames over its Unix socket and prints what it measured, times in microseconds.
 *
 *   nvload reg     PATH VERSION COUNT [IDLE]           connect, register, first LOCK_OK
 *   nvload handoff PATH VERSION COUNT [IDLE]           LOCK_RELEASED of one client to LOCK_OK of the next
 *   nvload cycle   PATH VERSION CLIENTS IDLE SECONDS   all take turns as fast as they can: messages a second
 *   nvload idle    PATH VERSION COUNT SECONDS          registered and silent
 *   nvload http    -    1 PORT COUNT                   GET /metrics
 *
 * IDLE registered clients that do nothing stand by. VERSION is 1 (537-byte frames) or 2 (659).
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { REGISTER = 1, SCHED_ON = 2, SCHED_OFF = 3, REQ_LOCK = 4, LOCK_OK = 5, DROP_LOCK = 6, LOCK_RELEASED = 7 };
enum { MOST_SAMPLES = 2000000, LONGEST_FRAME = 659 };

static int version;
static size_t frame_size;
static const char *path;

static void die(const char *what)
{
    perror(what);
    exit(2);
}

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

/* Between two measurements the server gets time to become idle; a sleep would let this processor become cold. */
static void spin_us(double us)
{
    double end = now_us() + us;
    while (now_us() < end)
        ;
}

static void send_frame(int fd, int type, const char *pod)
{
    unsigned char frame[LONGEST_FRAME] = {0};
    int32_t pid = getpid();

    frame[0] = type;
    if (version == 1 && pod) {
        strcpy((char *)frame + 1, pod);
        strcpy((char *)frame + 255, "bench");
    } else if (version == 2 && pod) {
        frame[1] = 2;
        strcpy((char *)frame + 3, pod);
        strcpy((char *)frame + 257, "bench");
        strcpy((char *)frame + 511, "GPU-bench-0000");
        memcpy(frame + 655, &pid, sizeof pid);
    }
    if (send(fd, frame, frame_size, MSG_NOSIGNAL) != (ssize_t)frame_size)
        die("send");
}

static int receive_frame(int fd)
{
    unsigned char frame[LONGEST_FRAME];
    size_t have = 0;

    while (have < frame_size) {
        ssize_t n = read(fd, frame + have, frame_size - have);
        if (n <= 0)
            die("the server closed the connection");
        have += n;
    }
    return frame[0];
}

static void wait_for(int fd, int type)
{
    while (receive_frame(fd) != type)
        ;
}

static int connect_unix(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);

    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    for (int tries = 0; connect(fd, (struct sockaddr *)&address, sizeof address) != 0; tries++) {
        if (errno != EAGAIN || tries > 2000)
            die("connect");
        usleep(500);
    }
    return fd;
}

static int registered(const char *pod)
{
    int fd = connect_unix();

    send_frame(fd, REGISTER, pod);
    int type = receive_frame(fd);
    if (type != SCHED_ON && type != SCHED_OFF) {
        fprintf(stderr, "answer %d to REGISTER\n", type);
        exit(3);
    }
    return fd;
}

static void stand_by(int count)
{
    char pod[32];
    for (int i = 0; i < count; i++) {
        snprintf(pod, sizeof pod, "idle-%04d", i);
        registered(pod);
    }
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const char *name, double *v, long n)
{
    if (n == 0)
        return;
    qsort(v, n, sizeof *v, by_size);
    printf("%s n=%ld p50=%.1f p90=%.1f p99=%.1f p999=%.1f max=%.1f\n", name, n, v[n / 2], v[(long)(n * .9)],
           v[(long)(n * .99)], v[(long)(n * .999)], v[n - 1]);
}

static void measure_reg(int count)
{
    double *status = malloc(count * sizeof *status), *lock = malloc(count * sizeof *lock);

    for (int i = 0; i < count; i++) {
        double begin = now_us();
        int fd = registered("reg");
        status[i] = now_us() - begin;
        send_frame(fd, REQ_LOCK, NULL);
        wait_for(fd, LOCK_OK);
        lock[i] = now_us() - begin;
        send_frame(fd, LOCK_RELEASED, NULL);
        spin_us(150);
        close(fd);
        spin_us(150);
    }
    report("connect_to_status", status, count);
    report("connect_to_lock", lock, count);
}

static void measure_handoff(int count)
{
    double *took = malloc(count * sizeof *took);
    int holder = registered("a"), waiter = registered("b");

    send_frame(holder, REQ_LOCK, NULL);
    wait_for(holder, LOCK_OK);
    for (int i = 0; i < count; i++) {
        send_frame(waiter, REQ_LOCK, NULL);
        spin_us(300);
        double begin = now_us();
        send_frame(holder, LOCK_RELEASED, NULL);
        wait_for(waiter, LOCK_OK);
        took[i] = now_us() - begin;
        int old = holder;
        holder = waiter;
        waiter = old;
        spin_us(100);
    }
    report("handoff", took, count);
}

static void measure_cycle(int clients, double seconds)
{
    int poll = epoll_create1(0), *fds = malloc(clients * sizeof *fds);
    size_t *have = calloc(clients, sizeof *have);
    unsigned char(*frames)[LONGEST_FRAME] = calloc(clients, LONGEST_FRAME);
    double *asked = calloc(clients, sizeof *asked), *waits = malloc(MOST_SAMPLES * sizeof *waits);
    long cycles = 0, *turns = calloc(clients, sizeof *turns), fewest = -1, most = 0;
    struct epoll_event events[64];
    char pod[32];

    for (int i = 0; i < clients; i++) {
        snprintf(pod, sizeof pod, "cycle-%03d", i);
        fds[i] = registered(pod);
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
        epoll_ctl(poll, EPOLL_CTL_ADD, fds[i], &event);
    }
    double begin = now_us(), end = begin + seconds * 1e6;
    for (int i = 0; i < clients; i++) {
        asked[i] = now_us();
        send_frame(fds[i], REQ_LOCK, NULL);
    }
    while (now_us() < end) {
        int ready = epoll_wait(poll, events, 64, 100);
        for (int j = 0; j < ready; j++) {
            int i = events[j].data.u32;
            ssize_t n = read(fds[i], frames[i] + have[i], frame_size - have[i]);
            if (n <= 0)
                die("the server closed the connection");
            have[i] += n;
            if (have[i] < frame_size)
                continue;
            have[i] = 0;
            if (frames[i][0] != LOCK_OK && frames[i][0] != DROP_LOCK)
                continue;
            if (frames[i][0] == LOCK_OK) {
                if (cycles < MOST_SAMPLES)
                    waits[cycles] = now_us() - asked[i];
                cycles++;
                turns[i]++;
            }
            send_frame(fds[i], LOCK_RELEASED, NULL);
            asked[i] = now_us();
            send_frame(fds[i], REQ_LOCK, NULL);
        }
    }
    double took = (now_us() - begin) / 1e6;
    for (int i = 0; i < clients; i++) {
        if (fewest < 0 || turns[i] < fewest)
            fewest = turns[i];
        if (turns[i] > most)
            most = turns[i];
    }
    printf("cycle cycles=%ld messages_per_s=%.0f fewest=%ld most=%ld\n", cycles, 3 * cycles / took, fewest, most);
    report("wait", waits, cycles < MOST_SAMPLES ? cycles : MOST_SAMPLES);
}

static void measure_http(int port, int count)
{
    double *took = malloc(count * sizeof *took);
    char *body = malloc(64 << 20);
    long size = 0;

    for (int i = 0; i < count; i++) {
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
        const char *request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
        double begin = now_us();
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        if (connect(fd, (struct sockaddr *)&address, sizeof address) || write(fd, request, strlen(request)) < 0)
            die("http");
        ssize_t n;
        size = 0;
        while ((n = read(fd, body + size, (64 << 20) - size)) > 0)
            size += n;
        close(fd);
        took[i] = now_us() - begin;
    }
    report("http", took, count);
    printf("body bytes=%ld\n", size);
}

int main(int argc, char **argv)
{
    if (argc < 5) {
        fprintf(stderr, "usage: nvload reg|handoff|cycle|idle|http PATH VERSION ...\n");
        return 1;
    }
    const char *mode = argv[1];
    path = argv[2];
    version = atoi(argv[3]);
    frame_size = version == 1 ? 537 : 659;
    int count = atoi(argv[4]), idle = argc > 5 ? atoi(argv[5]) : 0;

    if (!strcmp(mode, "reg")) {
        stand_by(idle);
        measure_reg(count);
    } else if (!strcmp(mode, "handoff")) {
        stand_by(idle);
        measure_handoff(count);
    } else if (!strcmp(mode, "cycle") && argc > 6) {
        stand_by(idle);
        measure_cycle(count, atof(argv[6]));
    } else if (!strcmp(mode, "idle")) {
        stand_by(count);
        printf("standing by\n");
        fflush(stdout);
        sleep(idle);
    } else if (!strcmp(mode, "http")) {
        measure_http(count, idle);
    } else {
        fprintf(stderr, "no mode %s\n", mode);
        return 1;
    }
    return 0;
}
