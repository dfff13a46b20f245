/* What the load generators share; load.h tells how it is used. */
#define _GNU_SOURCE
#include "load.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>

#define NS_PER_MS 1000000LL

enum {
    SILENCE_MS = 1000, /* after which what is under way counts as lost; a slow disk syncs well within */
    STEPS = 32,        /* of the times that answers took, within each power of two nanoseconds */
    POWERS = 48,
    DIGITS = 1 << 17,  /* that payloads are cut from: more than a compressor looks back, and little of a core's cache */
    UDP_LEVEL = 17,    /* SOL_UDP … */
    UDP_CUT = 103,     /* … and UDP_SEGMENT: older headers have neither */
    ALONE = 20000,     /* up to so many a second each message leaves by itself, when it is due */
};

long port = 8080, size = 64, rate, single, bursts;
int64_t due;
struct times {
    long counts[POWERS * STEPS], timed;
};
static struct times all, last; /* those of the last piece */
static long warm_ms = 300, run_ms = 2000, settle_ms;

static const struct setting COMMON[] = {
    {"port", &port, 1, 65535, "the server's port on 127.0.0.1"},
    {"size", &size, 1, MAX_SIZE, "payload bytes"},
    {"rate", &rate, 0, 10000000, "messages a second that are offered; 0: all that the window lets through"},
    {"single", &single, 0, 1, "1: each message in a write of its own, over TCP"},
    {"bursts", &bursts, 0, 1, "1: several datagrams go to the kernel as one, which it cuts up: less work for the generator"},
    {"settle_ms", &settle_ms, 0, 60000, "milliseconds at the beginning of each piece whose times do not count"},
    {"warm_ms", &warm_ms, 0, 60000, "milliseconds before the run that counts"},
    {"run_ms", &run_ms, 1, 3600000, "milliseconds of the run that counts"},
    {0},
};

struct tally {
    long sent, received, lost;
    int64_t begin, end; /* the end: when the last answer came */
    double cpu;
};

void fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

/* --- settings ----------------------------------------------------------- */

static void list_settings(const struct setting *one)
{
    for (; one->name; one++)
        printf("  %s=%ld  %s\n", one->name, *one->value, one->text);
}

static const struct setting *named(const struct setting *one, const char *word, size_t length)
{
    for (; one->name; one++)
        if (strlen(one->name) == length && !memcmp(one->name, word, length))
            return one;
    return NULL;
}

static void set(const struct setting *one, const char *text)
{
    char *end;
    errno = 0;
    long value = strtol(text, &end, 10);
    if (errno || end == text || *end || value < one->least || value > one->most)
        fail("%s: '%s' is not a number from %ld to %ld", one->name, text, one->least, one->most);
    *one->value = value;
}

void read_settings(int words, char **word, const char *about, const struct setting *own)
{
    for (int i = 1; i < words; i++) {
        size_t length = strcspn(word[i], "=");
        const struct setting *one = named(own, word[i], length);
        if (!one)
            one = named(COMMON, word[i], length);
        if (!one || !word[i][length]) {
            printf("%s\nSettings, as name=value:\n", about);
            list_settings(own);
            list_settings(COMMON);
            exit(strcmp(word[i], "help") != 0);
        }
        set(one, word[i] + length + 1);
    }
}

/* --- sockets ------------------------------------------------------------ */

void allow_sockets(long count)
{
    struct rlimit limit;
    long needed = count + 32;
    if (getrlimit(RLIMIT_NOFILE, &limit))
        fail("file descriptors: %s", strerror(errno));
    if ((rlim_t)needed > limit.rlim_max)
        fail("%ld sockets need a limit of %ld file descriptors; it is %ld (ulimit -Hn)", count, needed,
             (long)limit.rlim_max);
    if ((rlim_t)needed > limit.rlim_cur) {
        limit.rlim_cur = needed;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

int connected(int type)
{
    struct sockaddr_in server = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int yes = 1, buffer = RECEIVE_BUFFER;
    int fd = socket(AF_INET, type, 0);
    if (fd < 0)
        fail("socket: %s", strerror(errno));
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &buffer, sizeof buffer);
    if (type == SOCK_STREAM)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    if (connect(fd, (struct sockaddr *)&server, sizeof server))
        fail("connect to port %ld: %s", port, strerror(errno));
    return fd;
}

void send_whole(int fd, const void *bytes, size_t length)
{
    const char *next = bytes;
    while (length) {
        ssize_t sent = send(fd, next, length, MSG_NOSIGNAL);
        if (sent < 0)
            fail("send to port %ld: %s", port, strerror(errno));
        next += sent;
        length -= sent;
    }
}

const char *payload(void)
{
    static char digits[DIGITS + MAX_LARGE];
    static size_t place;
    if (!digits[0]) {
        uint64_t state = 88172645463325252ULL;
        for (size_t i = 0; i < sizeof digits; i++) {
            state ^= state << 13, state ^= state >> 7, state ^= state << 17;
            digits[i] = "0123456789abcdef"[state >> 60];
        }
    }
    place = (place + size + 1) % DIGITS; /* one after the other, and others the next time round */
    return digits + place;
}

/* So many at once, each `length` + `size` bytes from `bytes` on. */
static bool send_each(int fd, char *bytes, size_t length, int count)
{
    struct iovec parts[BURST];
    struct mmsghdr burst[BURST];
    for (int i = 0; i < count; i++) {
        parts[i] = (struct iovec){bytes + i * length, length};
        burst[i] = (struct mmsghdr){.msg_hdr = {.msg_iov = &parts[i], .msg_iovlen = 1}};
    }
    for (int done = 0, sent; done < count; done += sent)
        if ((sent = sendmmsg(fd, burst + done, count - done, 0)) < 0)
            return false;
    return true;
}

static bool send_burst(int fd, char *bytes, size_t length, int count)
{
    union {
        struct cmsghdr head; /* for its alignment */
        char bytes[CMSG_SPACE(sizeof(uint16_t))];
    } control = {0};
    struct iovec part = {bytes, count * length};
    struct msghdr whole = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    struct cmsghdr *cut = CMSG_FIRSTHDR(&whole);
    *cut = (struct cmsghdr){.cmsg_level = UDP_LEVEL, .cmsg_type = UDP_CUT, .cmsg_len = CMSG_LEN(sizeof(uint16_t))};
    uint16_t each = length;
    memcpy(CMSG_DATA(cut), &each, sizeof each);
    return sendmsg(fd, &whole, 0) >= 0;
}

void send_datagrams(int fd, const void *beginning, size_t length, long count)
{
    static char bytes[BURST * MAX_DATAGRAM];
    size_t each = length + size;
    while (count) {
        int together = count < BURST ? count : BURST;
        for (int i = 0; i < together; i++) { /* put together here: for the kernel two parts are more work than one */
            memcpy(bytes + i * each, beginning, length);
            memcpy(bytes + i * each + length, payload(), size);
        }
        if (!(bursts ? send_burst : send_each)(fd, bytes, each, together))
            fail("send to port %ld: %s", port, strerror(errno));
        count -= together;
    }
}

void in_turn(long publishers, long count, void (*send_by)(long publisher, long count))
{
    static long turn;
    long each = count / publishers, rest = count % publishers;
    for (long i = 0; i < publishers; i++)
        if (each)
            send_by(i, each);
    for (; rest; rest--)
        send_by(turn++ % publishers, 1);
}

bool readable(int fd, long wait_us)
{
    struct pollfd one = {.fd = fd, .events = POLLIN};
    struct timespec wait = {wait_us / 1000000, wait_us % 1000000 * 1000};
    return ppoll(&one, 1, &wait, NULL) == 1;
}

void discard(int fd)
{
    char bytes[65536];
    while (recv(fd, bytes, sizeof bytes, MSG_DONTWAIT) > 0)
        continue;
}

int watcher(void)
{
    int fd = epoll_create1(0);
    if (fd < 0)
        fail("epoll: %s", strerror(errno));
    return fd;
}

void watch(int watcher, int fd, long number)
{
    struct epoll_event wanted = {.events = EPOLLIN, .data.u64 = number};
    if (epoll_ctl(watcher, EPOLL_CTL_ADD, fd, &wanted))
        fail("epoll: %s", strerror(errno));
}

int watched(int watcher, long *numbers, int most, long wait_us)
{
    struct epoll_event ready[most];
    bool whole = wait_us % 1000 == 0; /* milliseconds: epoll itself knows only those */
    if (!whole && !readable(watcher, wait_us))
        return 0;
    int count = epoll_wait(watcher, ready, most, whole ? wait_us / 1000 : 0);
    for (int i = 0; i < count; i++)
        numbers[i] = ready[i].data.u64;
    return count < 0 ? 0 : count;
}

/* --- streams ------------------------------------------------------------ */

struct stream opened(size_t room)
{
    struct stream made = {connected(SOCK_STREAM), malloc(room), 0, room};
    if (!made.bytes)
        fail("out of memory");
    return made;
}

void read_more(struct stream *stream)
{
    ssize_t length = recv(stream->fd, stream->bytes + stream->held, stream->room - stream->held, MSG_DONTWAIT);
    if (length > 0)
        stream->held += length;
    else if (length == 0 || errno != EAGAIN)
        fail("the server closed the connection");
}

void used(struct stream *stream, size_t length)
{
    stream->held -= length;
    memmove(stream->bytes, stream->bytes + length, stream->held);
}

long take_ready(int watcher, struct stream *(*numbered)(long number), long (*take)(struct stream *stream), long wait_us)
{
    long ready[READY], count = 0;
    int some = watched(watcher, ready, READY, wait_us);
    for (int i = 0; i < some; i++) {
        struct stream *one = numbered(ready[i]);
        read_more(one);
        count += take(one);
    }
    return count;
}

/* --- the exchange ------------------------------------------------------- */

static int64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000 * NS_PER_MS + time.tv_nsec;
}

/* --- how long answers take ---------------------------------------------- */

void stamp(char *to)
{
    char text[STAMP + 1];
    snprintf(text, sizeof text, "%016llx", (unsigned long long)due);
    memcpy(to, text, STAMP);
}

void took(const char *from)
{
    char text[STAMP + 1] = {0};
    memcpy(text, from, STAMP);
    int64_t ns = now_ns() - (int64_t)strtoull(text, NULL, 16);
    int power = ns < STEPS ? 0 : 63 - __builtin_clzll(ns) - 4;
    long place = ns < 0 ? 0 : ns < STEPS ? ns : (long)power * STEPS + (ns >> (power - 1)) % STEPS;
    place = place < POWERS * STEPS ? place : POWERS * STEPS - 1;
    all.counts[place]++;
    all.timed++;
    last.counts[place]++;
    last.timed++;
}

/* The time in microseconds that so many of a million did not exceed. */
static double within(const struct times *times, long of_a_million)
{
    long left = (times->timed * of_a_million + 999999) / 1000000, place = 0;
    while (place < POWERS * STEPS - 1 && (left -= times->counts[place]) > 0)
        place++;
    long power = place / STEPS, step = place % STEPS;
    return (power ? (double)((int64_t)(step + STEPS + 1) << (power - 1)) : step + 1) / 1000;
}

static double cpu_seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static long missing(const struct load *load, const struct tally *tally)
{
    return tally->sent * load->answers - tally->received;
}

/* A message counts as under way until the last of its answers is here. */
static long under_way(const struct load *load, const struct tally *tally)
{
    long answers = missing(load, tally) - tally->lost;
    return answers > 0 ? (answers + load->answers - 1) / load->answers : 0;
}

/* Sends what is due by now, or all that there is room for; how many that were. */
static long send_some(const struct load *load, const struct tally *tally, int64_t now)
{
    long room = load->window - under_way(load, tally);
    if (!rate)
        return room >= load->step ? (load->send(room), room) : 0;
    long count = (now - tally->begin) * (double)rate / 1e9 - tally->sent + 1;
    count = count < room ? count : room;
    if (count <= 0)
        return 0;
    due = tally->begin + tally->sent * 1e9 / rate;
    count = rate <= ALONE ? 1 : count;
    load->send(count);
    return count;
}

/* How long to wait for answers: no longer than until the next message is due. */
static long patience(const struct tally *tally, int64_t now, int64_t stop)
{
    if (!rate || now >= stop)
        return WAIT_US;
    int64_t next = tally->begin + (tally->sent + (rate <= ALONE ? 0 : rate / 2000)) * 1e9 / rate;
    return next <= now ? 0 : next - now < WAIT_US * 1000LL ? (next - now) / 1000 : WAIT_US;
}

/* Sends for that long, then waits for what is still under way. */
static struct tally exchange(const struct load *load, long ms)
{
    double cpu = cpu_seconds();
    int64_t now = now_ns(), stop = now + ms * NS_PER_MS, heard = now;
    struct tally tally = {.begin = now, .end = now};
    while (now < stop || under_way(load, &tally)) {
        if (now < stop)
            tally.sent += send_some(load, &tally, now);
        long answers = load->receive(patience(&tally, now_ns(), stop));
        now = now_ns();
        tally.received += answers;
        if (answers || !load->answers) {
            heard = tally.end = now;
        } else if (now - heard > SILENCE_MS * NS_PER_MS) {
            tally.lost = missing(load, &tally);
            heard = now;
        }
    }
    tally.lost = missing(load, &tally) > 0 ? missing(load, &tally) : 0; /* some may have come late */
    tally.cpu = cpu_seconds() - cpu;
    return tally;
}

struct totals {
    long sent, received, lost;
    double seconds, cpu;
};

static void add(struct totals *totals, struct tally tally)
{
    totals->sent += tally.sent;
    totals->received += tally.received;
    totals->lost += tally.lost;
    totals->seconds += (tally.end - tally.begin) / 1e9;
    totals->cpu += tally.cpu;
}

/* Times are those after `settle_ms`: what was idle while others had their pieces is cold. */
static void piece(const struct load *load, struct totals *totals)
{
    struct times before = all;
    add(totals, exchange(load, settle_ms));
    all = before;
    memset(&last, 0, sizeof last);
    add(totals, exchange(load, run_ms));
}

/* Whether there was one. */
static bool wait_for_a_line(void)
{
    int byte;
    fflush(stdout);
    do
        byte = getchar();
    while (byte != '\n' && byte != EOF);
    return byte != EOF;
}

int run(const struct load *load)
{
    prctl(PR_SET_TIMERSLACK, 1000UL); /* nanoseconds: what is due leaves when it is due */
    exchange(load, warm_ms);
    memset(&all, 0, sizeof all);
    puts("prepared");
    wait_for_a_line();
    struct totals totals = {0};
    do {
        piece(load, &totals);
        printf("{\"sent\": %ld, \"received\": %ld, \"lost\": %ld, \"seconds\": %.6f, \"generator_cpu_s\": %.6f", totals.sent,
               totals.received, totals.lost, totals.seconds, totals.cpu);
        if (all.timed)
            printf(", \"p50_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f, \"last_p99_us\": %.1f", within(&all, 500000),
                   within(&all, 990000), within(&all, 999000), within(&last, 990000));
        puts("}");
    } while (wait_for_a_line());
    return 0;
}
