package sandbox

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/skiff-k8s/skiff/containers/oci"
)

func TestResolvConf(t *testing.T) {
	got, err := resolvConf(DNS{Servers: []string{"10.96.0.10", "fd00::a"}, Searches: []string{"a.svc", "svc"}, Options: []string{"ndots:5"}})
	if err != nil || got != "search a.svc svc\nnameserver 10.96.0.10\nnameserver fd00::a\noptions ndots:5\n" {
		t.Errorf("%q, %v", got, err)
	}
}

// A pod sets what is its own and nothing else.
func TestNamespacedSysctls(t *testing.T) {
	own := Config{Net: true, IPC: true}
	for _, tt := range []struct {
		key        string
		own, hosts bool
	}{
		{"net.ipv4.ip_forward", true, false},
		{"net/ipv4/ip_forward", true, false},
		{"kernel.shmmax", true, false},
		{"kernel.sem", true, false},
		{"fs.mqueue.msg_max", true, false},
		{"kernel.panic", false, false},
		{"vm.swappiness", false, false},
		{"kernel.shmmax/../../vm/swappiness", true, false}, // stays within /proc/sys, see setSysctl
	} {
		if namespaced(tt.key, own) != tt.own || namespaced(tt.key, Config{}) != tt.hosts {
			t.Errorf("%s: %v, %v", tt.key, namespaced(tt.key, own), namespaced(tt.key, Config{}))
		}
	}
}

func config(t *testing.T) Config {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes namespaces and mounts")
	}
	bin := t.TempDir()
	pause, err := oci.Monitor.Extract(bin)
	if err != nil {
		t.Skipf("needs the monitor: %v", err)
	}
	dir := filepath.Join(t.TempDir(), "sandbox")
	t.Cleanup(func() {
		if err := Remove(dir); err != nil {
			t.Error(err)
		}
	})
	return Config{Dir: dir, Hostname: "box", Net: true, IPC: true, Pause: pause}
}

func TestLifecycle(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"plain":             func(*Config) {},
		"host network":      func(c *Config) { c.Net = false },
		"host IPC":          func(c *Config) { c.IPC = false },
		"all of the host's": func(c *Config) { c.Net, c.IPC = false, false },
		"shared processes":  func(c *Config) { c.PID = true },
		"user namespace":    func(c *Config) { c.UIDs, c.GIDs = []Mapping{{0, 300000, 65536}}, []Mapping{{0, 300000, 65536}} },
		"both of the latter": func(c *Config) {
			c.PID = true
			c.UIDs, c.GIDs = []Mapping{{0, 300000, 65536}}, []Mapping{{0, 300000, 65536}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(t)
			change(&cfg)
			if err := Create(cfg); err != nil {
				t.Fatal(err)
			}
			if !Intact(cfg) {
				t.Error("not intact")
			}
			p := Layout(cfg)
			if cfg.Net {
				if err := InNetwork(p.Net, loopbackIsUp); err != nil {
					t.Error(err)
				}
			}
			for range 2 {
				if err := Release(cfg.Dir); err != nil {
					t.Fatal(err)
				}
			}
			if (cfg.Net || cfg.IPC || cfg.PID) && Intact(cfg) {
				t.Error("still intact")
			}
			for range 2 {
				if err := Remove(cfg.Dir); err != nil {
					t.Fatal(err)
				}
			}
			mounts, err := os.ReadFile("/proc/self/mountinfo")
			if err != nil || strings.Contains(string(mounts), cfg.Dir) {
				t.Errorf("mounts left: %v", err)
			}
		})
	}
}

func loopbackIsUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, req); err != nil {
		return err
	}
	if req.Uint16()&unix.IFF_UP == 0 {
		return errors.New("loopback is down")
	}
	return nil
}

func TestFailureLeavesNothing(t *testing.T) {
	cfg := config(t)
	cfg.Sysctls = map[string]string{"vm.swappiness": "1"}
	if err := Create(cfg); err == nil || !strings.Contains(err.Error(), "vm.swappiness") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(cfg.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left: %v", err)
	}
}
