#include "monitor.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { REPORT_FD = 3 };

struct state S = { .listen_fd = -1, .stdin_fd = -1, .tty_fd = -1, .log_fd = -1 };

static struct stream out = { .name = "stdout", .type = RSP_STDOUT, .fd = -1 };
static struct stream err = { .name = "stderr", .type = RSP_STDERR, .fd = -1 };

static bool parse(int argc, char **argv, struct options *o)
{
	static const struct option names[] = {
		{ "dir", required_argument, NULL, 'd' },   { "exit", required_argument, NULL, 'x' },
		{ "log", required_argument, NULL, 'l' },   { "oom", required_argument, NULL, 'o' },
		{ "tty", no_argument, NULL, 't' },	   { "stdin", no_argument, NULL, 'i' },
		{ "stdin-once", no_argument, NULL, '1' },  { 0 },
	};
	int c;

	o->log = o->oom = "";
	while ((c = getopt_long(argc, argv, "+", names, NULL)) != -1) {
		switch (c) {
		case 'd': o->dir = optarg; break;
		case 'x': o->exit = optarg; break;
		case 'l': o->log = optarg; break;
		case 'o': o->oom = optarg; break;
		case 't': o->tty = true; break;
		case 'i': o->want_stdin = true; break;
		case '1': o->stdin_once = true; break;
		default: return false;
		}
	}
	o->launcher = argv + optind;
	return o->dir && o->exit && o->launcher[0];
}

/* Reads once; returns whether there may be more. */
static bool pump(struct stream *s)
{
	static char buf[CHUNK];
	ssize_t n = read(s->fd, buf, sizeof buf);

	if (n > 0) {
		log_output(s, buf, (size_t)n);
		serve_output(s->type, buf, (size_t)n);
		return true;
	}
	if (n < 0 && (errno == EINTR || errno == EAGAIN))
		return false;
	/* The end; a terminal says EIO when the last process has closed it. */
	log_finish(s);
	if (s->fd == S.tty_fd)
		S.tty_fd = S.stdin_fd = -1;
	close(s->fd);
	s->fd = -1;
	return false;
}

static void add(struct pollfd *p, size_t *n, int fd, short events)
{
	p[*n].fd = fd;
	p[*n].events = events;
	p[(*n)++].revents = 0;
}

/* Returns true and the status once the container's init is among the dead. */
static bool reap(int *status)
{
	bool found = false;
	pid_t pid;
	int st;

	while ((pid = waitpid(-1, &st, WNOHANG)) > 0) {
		if (pid == S.init) {
			*status = st;
			found = true;
		}
	}
	return found;
}

static void loop(int sigfd)
{
	enum { SIGNALS, LISTEN, OUT, ERR, IN, CLIENTS };
	struct pollfd p[CLIENTS + MAX_CLIENTS];
	struct signalfd_siginfo si;
	int64_t deadline = 0;
	char text[256];
	size_t text_len = 0;
	int status = 0;

	for (;;) {
		bool stalled = serve_stalled();
		size_t n = 0;

		if (deadline && !S.exited && ((out.fd < 0 && err.fd < 0) || now_ms() >= deadline)) {
			/* All output is in the log: whoever sees the exit sees it too. */
			log_finish(&out);
			log_finish(&err);
			write_file(S.opt->exit, text, text_len, true);
			serve_exit(text, text_len);
			S.exited = true;
			deadline = now_ms() + DRAIN_MS;
			continue;
		}
		if (S.exited && (!stalled || now_ms() >= deadline))
			return;
		add(p, &n, sigfd, POLLIN);
		add(p, &n, serve_room() ? S.listen_fd : -1, POLLIN);
		add(p, &n, stalled ? -1 : out.fd, POLLIN);
		add(p, &n, stalled ? -1 : err.fd, POLLIN);
		add(p, &n, S.in_len ? S.stdin_fd : -1, POLLOUT);
		n += serve_poll(p + CLIENTS);
		if (poll(p, n, deadline ? 50 : stalled ? 1000 : -1) < 0)
			continue;
		if (p[SIGNALS].revents && read(sigfd, &si, sizeof si) > 0 && S.init && reap(&status)) {
			text_len = exit_text(text, sizeof text, status, oom_killed(S.opt->oom));
			S.init = 0;
			deadline = now_ms() + DRAIN_MS;
		}
		if (p[OUT].revents)
			pump(&out);
		if (p[ERR].revents)
			pump(&err);
		if (p[IN].revents)
			input_flush();
		if (p[LISTEN].revents)
			serve_accept();
		serve_ready(p + CLIENTS, MAX_CLIENTS);
	}
}

int main(int argc, char **argv)
{
	struct options o = { 0 };
	char buf[256];
	sigset_t mask;
	int sigfd;

	if (argc == 2 && !strcmp(argv[1], "pause"))
		return pause_main();
	if (!parse(argc, argv, &o)) {
		static const char usage[] = "usage: skiff-monitor --dir DIR --exit FILE [--log FILE] [--oom FILE] "
					    "[--tty] [--stdin] [--stdin-once] -- LAUNCHER ARG...\n";
		return write(2, usage, sizeof usage - 1) < 0 ? 3 : 2;
	}
	S.opt = &o;
	/* A session of our own: no terminal's signals, no runtime's process group. */
	setsid();
	if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) < 0 || chdir(o.dir) < 0)
		return 1;
	/* Containers get the usual mask, not the one of the shell that started skiff. */
	umask(022);
	fcntl(REPORT_FD, F_SETFD, FD_CLOEXEC);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	sigemptyset(&mask);
	sigaddset(&mask, SIGCHLD);
	sigprocmask(SIG_BLOCK, &mask, NULL);
	sigfd = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
	S.listen_fd = serve_open();
	if (sigfd < 0 || S.listen_fd < 0)
		return 1;
	write_file("monitor.json", buf, state_text(buf, sizeof buf, 0), false);
	S.log_fd = log_open(o.log);
	if (!start_container(&out, &err, REPORT_FD)) {
		unlink("monitor.sock");
		return 1;
	}
	close(REPORT_FD);
	loop(sigfd);
	unlink("monitor.sock");
	return 0;
}
