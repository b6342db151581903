// Command hello is the web server of the built-in images skiff.local/hello:v1
// and :v2: small enough to ship inside skiff, and saying who answered.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	port := flag.String("port", env("PORT", "8080"), "TCP port to serve on (environment: PORT)")
	version := flag.String("version", env("HELLO_VERSION", "v1"), "version to tell (environment: HELLO_VERSION)")
	message := flag.String("message", env("HELLO_MESSAGE", "Hello from skiff"), "what to say (environment: HELLO_MESSAGE)")
	flag.Parse()
	if err := run(*port, *version, *message); err != nil {
		fmt.Fprintf(os.Stderr, "hello: %v\n", err)
		os.Exit(1)
	}
}

func env(key, fallback string) string {
	if v := os.Getenv(key); v != "" {
		return v
	}
	return fallback
}

func run(port, version, message string) error {
	hostname, err := os.Hostname()
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", ":"+port)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	context.AfterFunc(ctx, func() { _ = l.Close() })
	s := &server{hostname: hostname, version: version, message: message}
	fmt.Printf("hello %s on %s serves port %s\n", version, hostname, port)
	var open sync.WaitGroup
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			break
		}
		if err != nil {
			return err
		}
		open.Go(func() { s.serve(ctx, c) })
	}
	open.Wait()
	return nil
}

// server speaks HTTP/1.1 by hand: net/http would triple the program and its
// memory, for two pages of plain text.
type server struct{ hostname, version, message string }

const (
	idle       = 60 * time.Second
	maxHeaders = 100
)

func (s *server) serve(ctx context.Context, c net.Conn) {
	defer func() { _ = c.Close() }()
	// When told to stop: the answer under way is finished, idle connections end.
	defer context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Now()) })()
	in := bufio.NewReaderSize(c, 8<<10)
	for ctx.Err() == nil {
		if err := c.SetDeadline(time.Now().Add(idle)); err != nil {
			return
		}
		method, target, keep, err := readRequest(in)
		if err != nil {
			return
		}
		status, body := s.answer(target)
		connection := "close"
		if keep && ctx.Err() == nil {
			connection = "keep-alive"
		}
		head := fmt.Sprintf("HTTP/1.1 %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: %s\r\n\r\n", status, len(body), connection)
		if method == "HEAD" {
			body = ""
		}
		if _, err := c.Write([]byte(head + body)); err != nil {
			return
		}
		fmt.Printf("%s %s %s %s\n", c.RemoteAddr(), method, target, status)
		if connection == "close" {
			return
		}
	}
}

func (s *server) answer(target string) (status, body string) {
	path, _, _ := strings.Cut(target, "?")
	switch path {
	case "/healthz":
		return "200 OK", "ok\n"
	case "/version":
		return "200 OK", s.version + "\n"
	case "/hostname":
		return "200 OK", s.hostname + "\n"
	}
	return "200 OK", fmt.Sprintf("%s\nversion: %s\nhostname: %s\npath: %s\n", s.message, s.version, s.hostname, path)
}

// readRequest reads a request line and skips the headers and a body of known length.
func readRequest(in *bufio.Reader) (method, target string, keep bool, err error) {
	line, err := readLine(in)
	if err != nil {
		return "", "", false, err
	}
	f := strings.Fields(line)
	if len(f) != 3 || !strings.HasPrefix(f[2], "HTTP/1.") || !strings.HasPrefix(f[1], "/") {
		return "", "", false, errors.New("not an HTTP/1 request")
	}
	keep = f[2] != "HTTP/1.0"
	length := 0
	for range maxHeaders {
		if line, err = readLine(in); err != nil {
			return "", "", false, err
		}
		if line == "" {
			_, err = in.Discard(length)
			return f[0], f[1], keep, err
		}
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch strings.ToLower(key) {
		case "connection":
			keep = keep && !strings.EqualFold(value, "close")
		case "content-length":
			if _, err := fmt.Sscanf(value, "%d", &length); err != nil || length < 0 || length > 1<<20 {
				return "", "", false, errors.New("bad content length")
			}
		case "transfer-encoding":
			return "", "", false, errors.New("bodies in chunks are not read")
		}
	}
	return "", "", false, errors.New("too many headers")
}

func readLine(in *bufio.Reader) (string, error) {
	line, err := in.ReadSlice('\n')
	if err != nil {
		return "", err // too long, too, is an error
	}
	return strings.TrimRight(string(line), "\r\n"), nil
}
