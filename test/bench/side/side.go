// Package side starts the two sides of a comparison: skiff, and upstream's etcd, kube-apiserver,
// kube-scheduler and kube-controller-manager, with the same certificates, the same user for the
// load and the same audit policy.
//
// Owns: processes and their flags. Must not: make load or know cases.
package side

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/skiff-k8s/skiff/cluster"
	"github.com/skiff-k8s/skiff/cluster/pki"
	"github.com/skiff-k8s/skiff/test/bench/procfs"
	"github.com/skiff-k8s/skiff/test/bench/record"
)

// Config says what to start and where. The host's network must have a default route.
type Config struct {
	Side  string // record.Skiff or record.Upstream
	Dir   string // empty or new
	Skiff string // the binary
	Twins string // the folder of upstream's binaries
}

// Process is one that was started.
type Process struct {
	Name string
	PID  int
	cmd  *exec.Cmd
	done chan struct{}
}

// Cluster is a running control plane.
type Cluster struct {
	Side      string
	Processes []*Process
	// Admin may do all; User is an ordinary one that RBAC allows what the load needs.
	Admin, User string
	// Audit: an audit log at Metadata level is kept.
	Audit bool
	// Boot is from the first exec until /readyz said ok; BootCPU what the processes that ran had used
	// by then: all of skiff's, of upstream's only etcd and the API server.
	Boot    time.Duration
	BootCPU map[string]float64

	Config *cluster.Config
	Creds  *cluster.Credentials
	dir    string
	c      Config
}

// Missing says which upstream binaries a folder lacks.
func Missing(twins string, names ...string) error {
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(twins, name)); err != nil {
			return fmt.Errorf("%s: make twins builds it", err)
		}
	}
	return nil
}

// ControlPlane are upstream's processes of one.
func ControlPlane() []string {
	return []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}
}

// Start brings a control plane up. It must be called, like all that starts processes here, from
// a goroutine that is locked to its thread: the processes die with that thread.
func Start(ctx context.Context, c Config) (*Cluster, error) {
	k := &Cluster{Side: c.Side, dir: c.Dir, c: c, BootCPU: map[string]float64{}}
	if err := k.prepare(); err != nil {
		return nil, err
	}
	begin := time.Now()
	var err error
	if c.Side == record.Upstream {
		err = k.startUpstream()
	} else {
		err = k.startSkiff()
	}
	if err == nil {
		err = k.waitReady(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, k.Stop())
	}
	k.Boot = time.Since(begin)
	for _, p := range k.Processes {
		if k.BootCPU[p.Name], err = procfs.CPU(p.PID); err != nil {
			return nil, errors.Join(err, k.Stop())
		}
	}
	if c.Side == record.Upstream {
		err = k.startManagers()
	}
	if err == nil {
		err = k.allow(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, k.Stop())
	}
	return k, nil
}

// prepare makes configuration, certificates and kubeconfigs.
func (k *Cluster) prepare() error {
	conf, err := cluster.LoadOrCreate("bench", k.dir)
	if err != nil {
		return err
	}
	if k.Creds, err = cluster.EnsureCredentials(k.dir, conf); err != nil {
		return err
	}
	conf.PodCIDRs = []netip.Prefix{podNetwork}
	k.Config = conf
	k.Admin = cluster.Paths{Dir: k.dir}.Kubeconfig()
	if k.User, err = k.Kubeconfig(benchUser); err != nil {
		return err
	}
	for _, sub := range []string{"log", "run"} {
		if err := os.MkdirAll(filepath.Join(k.dir, sub), 0o755); err != nil {
			return err
		}
	}
	return os.WriteFile(k.path("audit.yaml"), []byte(auditPolicy), 0o644)
}

// podNetwork has a /24 for each of thousands of nodes.
var podNetwork = netip.MustParsePrefix("10.128.0.0/9")

// auditPolicy is what most clusters run with.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
`

func (k *Cluster) path(name string) string { return filepath.Join(k.dir, name) }

func (k *Cluster) pki(name string) string {
	return filepath.Join(cluster.Paths{Dir: k.dir}.PKI(), name)
}

// Kubeconfig makes one for a user with a client certificate and returns its path.
func (k *Cluster) Kubeconfig(user string, groups ...string) (string, error) {
	file := strings.ReplaceAll(user, ":", "-")
	pair, err := pki.Dir{Path: k.pki("")}.Leaf(k.Creds.CA, file, pki.Leaf{CommonName: user, Organizations: groups, Client: true})
	if err != nil {
		return "", err
	}
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["bench"] = &clientcmdapi.Cluster{Server: k.Config.Server(), CertificateAuthorityData: k.Creds.CA.Cert}
	cfg.AuthInfos["bench"] = &clientcmdapi.AuthInfo{ClientCertificateData: pair.Cert, ClientKeyData: pair.Key}
	cfg.Contexts["bench"] = &clientcmdapi.Context{Cluster: "bench", AuthInfo: "bench"}
	cfg.CurrentContext = "bench"
	path := k.path(file + ".kubeconfig")
	return path, clientcmd.WriteToFile(*cfg, path)
}

// Exec starts a process whose output goes to log/NAME.log and which dies with the calling thread.
func (k *Cluster) Exec(name string, argv ...string) (*Process, error) {
	log, err := os.OpenFile(filepath.Join(k.dir, "log", name+".log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, k.dir
	// containerd takes the first shim that it finds, and another release's does not fit.
	cmd.Env = append(os.Environ(), "PATH="+k.c.Twins+":"+os.Getenv("PATH"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &Process{Name: name, PID: cmd.Process.Pid, cmd: cmd, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // the log tells
		close(p.done)
	}()
	k.Processes = append(k.Processes, p)
	return p, nil
}

// Stop ends a process.
func (p *Process) Stop() error {
	for _, step := range []struct {
		sig  syscall.Signal
		wait time.Duration
	}{{syscall.SIGTERM, 15 * time.Second}, {syscall.SIGKILL, 10 * time.Second}} {
		if err := p.cmd.Process.Signal(step.sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("stop %s: %w", p.Name, err)
		}
		select {
		case <-p.done:
			return nil
		case <-time.After(step.wait):
		}
	}
	return fmt.Errorf("%s (pid %d) does not end", p.Name, p.PID)
}

// Stop ends what runs, the last started first. The directory stays.
func (k *Cluster) Stop() error {
	var err error
	for i := len(k.Processes) - 1; i >= 0; i-- {
		err = errors.Join(err, k.Processes[i].Stop())
	}
	k.Processes = nil
	return err
}

// PIDs are all processes as apibench takes them.
func (k *Cluster) PIDs() string {
	var all []string
	for _, p := range k.Processes {
		all = append(all, fmt.Sprintf("%s=%d", p.Name, p.PID))
	}
	return strings.Join(all, ",")
}

// waitReady asks /readyz until it says ok or a process ends.
func (k *Cluster) waitReady(ctx context.Context) error {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(k.Creds.CA.Cert)
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}}}
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		resp, err := client.Get(k.Config.Server() + "/readyz")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		for _, p := range k.Processes {
			select {
			case <-p.done:
				return fmt.Errorf("%s ended (%s); its log: %s", p.Name, p.cmd.ProcessState, k.path("log"))
			default:
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready (%v); logs: %s", k.Side, err, k.path("log"))
		}
	}
}
