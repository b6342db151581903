/*
 * skiff-monitor: the parent of one container.
 *
 * It outlives the runtime, so that a container does: it holds the container's
 * stdio and writes the CRI log, reaps the container's init (as the nearest
 * subreaper of the launcher that made it), leaves the exit status on disk, and
 * serves attach, signals, log reopening and terminal size on a unix socket.
 * It knows nothing of CRI or OCI and allocates nothing after start.
 *
 * Messages on the socket (SOCK_SEQPACKET, one message a packet): a type byte,
 * then its payload. Types are only ever added, see MONITOR_PROTOCOL.
 */
#ifndef SKIFF_MONITOR_H
#define SKIFF_MONITOR_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#define MONITOR_PROTOCOL 1

#define CHUNK 16384	  /* longest log line before it is split, longest payload */
#define MAX_CLIENTS 24	  /* connections at a time; more have to wait */
#define MAX_ATTACHED 16	  /* of them attached; more are refused */
#define DRAIN_MS 1000	  /* how long output may follow the exit of init */
#define STALL_MS 10000	  /* how long a client may refuse to read */

/* From the runtime. */
enum {
	REQ_STATUS = 'S',  /* subscribe: answered by RSP_STATUS, later RSP_EXIT */
	REQ_KILL = 'K',	   /* int32 signal, for the container's init */
	REQ_REOPEN = 'R',  /* open the log file anew */
	REQ_ATTACH = 'A',  /* from now on copy output to this connection */
	REQ_STDIN = 'I',   /* bytes for the container's standard input */
	REQ_CLOSE = 'C',   /* the client's input has ended */
	REQ_RESIZE = 'W',  /* uint16 rows, uint16 columns */
};

/* To the runtime. */
enum {
	RSP_ACK = 'a',	   /* int32 errno, 0 for done */
	RSP_STATUS = 'P',  /* int32 protocol, int32 pid of init */
	RSP_EXIT = 'X',	   /* the text of the exit file */
	RSP_STDOUT = 'O',
	RSP_STDERR = 'E',
};

struct options {
	const char *dir;     /* where monitor.sock and monitor.json are made */
	const char *exit;    /* file for the exit status */
	const char *log;     /* CRI log file, or "" */
	const char *oom;     /* file with an "oom_kill N" line, or "" */
	bool tty, want_stdin, stdin_once;
	char **launcher;     /* argv of the program that makes the container */
};

/* log.c: the CRI log. */
struct stream {
	const char *name; /* "stdout" or "stderr" */
	uint8_t type;	  /* RSP_STDOUT or RSP_STDERR */
	int fd;		  /* where the container's output is read, or -1 */
	size_t len;	  /* bytes of an unfinished line */
	char line[CHUNK];
};
int log_open(const char *path);
void log_output(struct stream *s, const char *data, size_t n);
void log_finish(struct stream *s);

/* serve.c: the socket and its clients. */
int serve_open(void);
bool serve_room(void);
void serve_accept(void);
bool serve_stalled(void); /* some client has not taken what it was sent */
void serve_output(uint8_t type, const char *data, size_t n);
void serve_exit(const char *text, size_t n);
size_t serve_poll(struct pollfd *p);
void serve_ready(const struct pollfd *p, size_t n);

/* start.c: making the container. */
pid_t start_container(struct stream *out, struct stream *err, int report_fd);

/* record.c: files. */
int write_file(const char *path, const char *text, size_t n, bool sync);
bool oom_killed(const char *path);
size_t exit_text(char *buf, size_t cap, int status, bool oom);
size_t state_text(char *buf, size_t cap, pid_t init);

/* pause.c: pid 1 of a pod that shares its process namespace. */
int pause_main(void);

/* text.c: formatting without stdio, which would cost more memory than all the rest. */
struct text {
	char *buf;
	size_t len, cap;
};
void text_str(struct text *t, const char *s);
void text_num(struct text *t, uint64_t n, int width);
void text_time(struct text *t, const struct timespec *ts);
uint64_t start_time_of(pid_t pid);
int64_t now_ms(void);

/* input.c: towards the container. */
void input_put(const char *data, size_t n);
void input_flush(void);
void input_end(void);
int input_resize(uint16_t rows, uint16_t cols);

/* main.c: what the loop owns. */
extern struct state {
	const struct options *opt;
	pid_t init;	    /* 0 once reaped */
	int listen_fd;
	int stdin_fd;	    /* writing end of the container's input, or -1 */
	int tty_fd;	    /* terminal master, or -1 */
	int log_fd;
	char in[CHUNK];	    /* input that the container has not taken yet */
	size_t in_len;
	bool in_close;	    /* close the input once in[] is empty */
	bool exited;	    /* the exit has been told */
} S;

#endif
