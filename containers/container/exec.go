// Package container runs further processes in a container and prepares its
// volumes: what concerns one container and is neither its spec, nor its
// monitor, nor its cgroup.
//
// It must not know CRI services or images.
package container

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Exec is a process to run in a container that runs.
type Exec struct {
	Launcher  string // program
	StateRoot string // libcontainer's
	ID        string
	Process   specs.Process
	Cgroups   map[string]string // the process's own, by controller

	Stdin          io.Reader // nil for none
	Stdout, Stderr io.Writer // nil to discard
	Resize         <-chan Size
}

// Size is a terminal's.
type Size struct{ Rows, Cols uint16 }

// drain is how long output may follow the end of the process: a child of it
// may hold the pipe for ever.
const drain = time.Second

// request and message mirror containers/launcher.
type request struct {
	Process specs.Process     `json:"process"`
	Cgroups map[string]string `json:"cgroups,omitempty"`
}

type message struct {
	PID   int    `json:"pid"`
	Exit  *int32 `json:"exit"`
	Error string `json:"error"`
}

// StartError says that the process could not be started.
type StartError struct{ Reason string }

func (e *StartError) Error() string { return e.Reason }

// Run runs the process to its end and returns its exit code. When ctx ends
// first, the process and all it started are killed and ctx's error is returned.
func (e Exec) Run(ctx context.Context) (int32, error) {
	control, theirs, err := socketPair("control")
	if err != nil {
		return 0, err
	}
	defer func() { _ = control.Close() }()
	cmd := exec.Command(e.Launcher, "exec", e.StateRoot, e.ID)
	cmd.Env = []string{"GOGC=off", "GOMAXPROCS=2"}
	cmd.Dir = "/"
	cmd.WaitDelay = drain
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.ExtraFiles = []*os.File{theirs}
	var console *os.File
	var stdin io.WriteCloser
	if e.Process.Terminal {
		var consoleTheirs *os.File
		if console, consoleTheirs, err = socketFiles("console"); err != nil {
			return 0, errors.Join(err, theirs.Close())
		}
		defer func() { _ = console.Close() }()
		defer func() { _ = consoleTheirs.Close() }()
		cmd.ExtraFiles = append(cmd.ExtraFiles, consoleTheirs)
	} else {
		cmd.Stdout, cmd.Stderr = e.Stdout, e.Stderr
		if e.Stdin != nil {
			if stdin, err = cmd.StdinPipe(); err != nil {
				return 0, errors.Join(err, theirs.Close())
			}
		}
	}
	err = cmd.Start()
	if cerr := theirs.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return 0, fmt.Errorf("start launcher: %w", err)
	}
	if stdin != nil {
		go func() {
			_, _ = io.Copy(stdin, e.Stdin) // ends with the client's stream or the process
			_ = stdin.Close()
		}()
	}
	code, err := e.converse(ctx, control, console)
	if err != nil {
		_ = control.Close() // tells the launcher to kill what it started
	}
	werr := cmd.Wait() // and for the output to be copied
	if err == nil && werr != nil && !errors.Is(werr, exec.ErrWaitDelay) {
		err = fmt.Errorf("launcher: %w", werr)
	}
	return code, err
}

// converse follows the process by what the launcher says.
func (e Exec) converse(ctx context.Context, control net.Conn, console *os.File) (int32, error) {
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-ctx.Done():
			_ = control.Close()
		case <-done:
		}
	}()
	failed := func(what string, err error) (int32, error) {
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		return 0, fmt.Errorf("%s: %w", what, err)
	}
	b, err := json.Marshal(request{Process: e.Process, Cgroups: e.Cgroups})
	if err != nil {
		return 0, err
	}
	if _, err := control.Write(append(b, '\n')); err != nil {
		return failed("ask launcher", err)
	}
	in := bufio.NewReader(control)
	next := func() (message, error) {
		var m message
		line, err := in.ReadBytes('\n')
		if err != nil {
			return m, err
		}
		return m, json.Unmarshal(line, &m)
	}
	m, err := next()
	if err != nil {
		return failed("start process", err)
	}
	if m.Error != "" {
		return 0, &StartError{m.Error}
	}
	terminalDone := make(chan struct{})
	if console != nil {
		tty, err := receiveFile(console)
		if err != nil {
			return failed("receive terminal", err)
		}
		defer func() { _ = tty.Close() }()
		go e.serveTerminal(tty, done, terminalDone)
	} else {
		close(terminalDone)
	}
	for m.Exit == nil {
		if m, err = next(); err != nil {
			return failed("wait for process", err)
		}
		if m.Error != "" {
			return 0, errors.New(m.Error)
		}
	}
	select {
	case <-terminalDone:
	case <-time.After(drain):
	}
	return *m.Exit, nil
}

// serveTerminal copies both ways until the terminal hangs up.
func (e Exec) serveTerminal(tty *os.File, done <-chan struct{}, finished chan<- struct{}) {
	defer close(finished)
	if e.Stdin != nil {
		go func() { _, _ = io.Copy(tty, e.Stdin) }()
	}
	if e.Resize != nil {
		go func() {
			for {
				select {
				case s, ok := <-e.Resize:
					if !ok {
						return
					}
					setSize(tty, s)
				case <-done:
					return
				}
			}
		}()
	}
	out := e.Stdout
	if out == nil {
		out = io.Discard
	}
	_, _ = io.Copy(out, tty) // EIO once nobody has it open
}

// setSize does not use Fd: the terminal may be closed meanwhile, and its number be another file's.
func setSize(tty *os.File, s Size) {
	conn, err := tty.SyscallConn()
	if err != nil {
		return // closed
	}
	_ = conn.Control(func(fd uintptr) {
		_ = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: s.Rows, Col: s.Cols}) // it may have hung up
	})
}

func socketFiles(name string) (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make %s socket: %w", name, err)
	}
	return os.NewFile(uintptr(fds[0]), name), os.NewFile(uintptr(fds[1]), name), nil
}

func socketPair(name string) (net.Conn, *os.File, error) {
	ours, theirs, err := socketFiles(name)
	if err != nil {
		return nil, nil, err
	}
	c, err := net.FileConn(ours)
	_ = ours.Close() // FileConn has its own copy
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("make %s socket: %w", name, err), theirs.Close())
	}
	return c, theirs, nil
}

// receiveFile takes the terminal that libcontainer passes over the socket.
func receiveFile(sock *os.File) (*os.File, error) {
	name, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := unix.Recvmsg(int(sock.Fd()), name, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return nil, err
	}
	msgs, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return nil, err
	}
	if len(msgs) != 1 {
		return nil, errors.New("no descriptor came")
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil {
		return nil, err
	}
	if len(fds) != 1 {
		return nil, fmt.Errorf("%d descriptors came", len(fds))
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, errors.Join(err, unix.Close(fds[0]))
	}
	return os.NewFile(uintptr(fds[0]), "terminal"), nil
}
