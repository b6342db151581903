package etcd

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// upstream is an etcd server of its own process: upstream's main in a copy of the test
// binary, or the binary that ETCD_BIN names.
type upstream struct {
	t    *testing.T
	name string
	url  string
	args []string
	cmd  *exec.Cmd
}

// tlsFiles are what a server or a client shows, in PEM files.
type tlsFiles struct{ ca, cert, key string }

// loopback is an address of this process alone: elsewhere on the machine nobody listens at it or
// calls from it, so that a port stays free while its server is away.
var loopback = net.IPv4(127, byte(1+os.Getpid()>>16&0x7f), byte(os.Getpid()>>8), byte(1+os.Getpid()%254))

// ports have been given out by freePort.
var ports sync.Map

// freePort is a port that no other server has or will have; etcd must know it before it listens.
func freePort(t *testing.T) string {
	t.Helper()
	for {
		l, err := net.Listen("tcp", net.JoinHostPort(loopback.String(), "0"))
		if err != nil {
			t.Fatal(err)
		}
		address := l.Addr().String()
		l.Close()
		if _, taken := ports.LoadOrStore(address, true); !taken {
			return address
		}
	}
}

// members prepares a cluster of n; files non-nil: it speaks TLS and wants client certificates.
func members(t *testing.T, n int, files *tlsFiles) []*upstream {
	t.Helper()
	var all []*upstream
	var initial []string
	for i := range n {
		m := &upstream{t: t, name: fmt.Sprintf("m%d", i), url: "http://" + freePort(t)}
		peer := "http://" + freePort(t)
		if files != nil {
			m.url = strings.Replace(m.url, "http:", "https:", 1)
			m.args = append(m.args, "--trusted-ca-file="+files.ca, "--client-cert-auth",
				"--cert-file="+files.cert, "--key-file="+files.key)
		}
		m.args = append(m.args, "--name="+m.name, "--data-dir="+filepath.Join(t.TempDir(), "data"),
			"--listen-client-urls="+m.url, "--advertise-client-urls="+m.url,
			"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer,
			"--heartbeat-interval=50", "--election-timeout=500", "--log-level=fatal")
		initial = append(initial, m.name+"="+peer)
		all = append(all, m)
	}
	for _, m := range all {
		m.args = append(m.args, "--initial-cluster="+strings.Join(initial, ","))
	}
	return all
}

func urls(all []*upstream) []string {
	var out []string
	for _, m := range all {
		out = append(out, m.url)
	}
	return out
}

func (m *upstream) start() {
	m.t.Helper()
	bin := os.Getenv("ETCD_BIN")
	if bin == "" {
		bin = os.Args[0]
	}
	m.cmd = exec.Command(bin, m.args...)
	m.cmd.Env = append(os.Environ(), "STORE_TEST_CHILD=etcd")
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	m.cmd.Stderr = m.t.Output()
	if err := m.cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	cmd := m.cmd
	m.t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may be dead already
		_ = cmd.Wait()
	})
}

// kill ends it without notice.
func (m *upstream) kill() {
	m.t.Helper()
	if err := m.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		m.t.Fatal(err)
	}
	_ = m.cmd.Wait() // says that it was killed
}

// waitDown returns when nothing listens any more.
func (m *upstream) waitDown() {
	address := m.url[strings.Index(m.url, "//")+2:]
	for end := time.Now().Add(patience); time.Now().Before(end); {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			return
		}
		conn.Close()
	}
	m.t.Fatal("still listening: " + address)
}

// patience is far beyond what anything here needs on a busy machine.
const patience = 60 * time.Second
