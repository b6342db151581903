// Package check finds out what a host lacks to run a cluster, and says how to mend it.
//
// Owns: the list of requirements. Must not: change the host but for what it puts back at
// once; know how components use what they require.
package check

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/skiff-k8s/skiff/host/netlink"
	"github.com/skiff-k8s/skiff/host/nft"
)

// Requirement is one thing that a host must have.
type Requirement struct {
	Name string
	// Problem explains what is missing; nil when it is there.
	Problem error
	// Mend says what to do.
	Mend string
}

// Config says what the cluster will use.
type Config struct {
	// Ports that must be free.
	Ports []uint16
	// DataDir will hold all data; it may not exist yet.
	DataDir string
}

// minFree is the disk space in bytes that a cluster needs to start.
const minFree = 512 << 20

// Host checks everything. Missing rights are reported first and alone: without them
// nothing else can be found out.
func Host(c Config) []Requirement {
	root := Requirement{Name: "root", Problem: isRoot(), Mend: "run as root (sudo), with all capabilities"}
	if root.Problem != nil {
		return []Requirement{root}
	}
	out := []Requirement{
		root,
		{"overlay file system", filesystem("overlay"), "modprobe overlay, or use a kernel with CONFIG_OVERLAY_FS"},
		{"namespaces", namespaces(), "use a kernel with CONFIG_NAMESPACES, CONFIG_NET_NS, CONFIG_PID_NS, CONFIG_IPC_NS and CONFIG_UTS_NS"},
		{"seccomp filters", exists("/proc/sys/kernel/seccomp/actions_avail"), "use a kernel with CONFIG_SECCOMP_FILTER"},
		{"control groups", cgroups(), "mount cgroup v2 on /sys/fs/cgroup, or the v1 controllers below it"},
		{"nftables", nftables(), "modprobe nf_tables nft_chain_nat nft_numgen nft_fib_ipv4, or use a kernel with CONFIG_NF_TABLES and CONFIG_NFT_NAT"},
		{"bridge and veth", links(), "modprobe bridge veth, or use a kernel with CONFIG_BRIDGE and CONFIG_VETH"},
		{"forwarding", writable("/proc/sys/net/ipv4/ip_forward"), "mount /proc/sys read-write"},
		{"an address", address(), "give this host's link an address: ip addr add …"},
		{"disk space", diskSpace(c.DataDir), "free some space, or choose another --data-dir"},
	}
	for _, p := range c.Ports {
		out = append(out, Requirement{fmt.Sprintf("port %d", p), PortFree(p),
			fmt.Sprintf("stop what listens there: ss -ltnp 'sport = :%d'", p)})
	}
	return out
}

// Problems joins what is missing into one error; nil if nothing is.
func Problems(rs []Requirement) error {
	var lacks []string
	for _, r := range rs {
		if r.Problem != nil {
			lacks = append(lacks, fmt.Sprintf("%s: %v (%s)", r.Name, r.Problem, r.Mend))
		}
	}
	if len(lacks) == 0 {
		return nil
	}
	return errors.New("this host cannot run a cluster: " + strings.Join(lacks, "; "))
}

func isRoot() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("running as user %d", os.Geteuid())
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(status)) {
		hex, ok := strings.CutPrefix(line, "CapEff:")
		if !ok {
			continue
		}
		caps, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
		if err != nil {
			return fmt.Errorf("read capabilities: %w", err)
		}
		var missing []string
		for name, bit := range map[string]int{"CAP_SYS_ADMIN": unix.CAP_SYS_ADMIN, "CAP_NET_ADMIN": unix.CAP_NET_ADMIN, "CAP_SYS_CHROOT": unix.CAP_SYS_CHROOT, "CAP_MKNOD": unix.CAP_MKNOD} {
			if caps&(1<<bit) == 0 {
				missing = append(missing, name)
			}
		}
		if len(missing) > 0 {
			return fmt.Errorf("lacks %s", strings.Join(missing, ", "))
		}
	}
	return nil
}

func exists(path string) error {
	_, err := os.Stat(path)
	return err
}

func writable(path string) error { return unix.Access(path, unix.W_OK) }

func filesystem(name string) error {
	text, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 0 && f[len(f)-1] == name {
			return nil
		}
	}
	return fmt.Errorf("the kernel does not know %s", name)
}

func namespaces() error {
	for _, n := range []string{"net", "mnt", "pid", "ipc", "uts"} {
		if err := exists("/proc/self/ns/" + n); err != nil {
			return fmt.Errorf("no %s namespaces", n)
		}
	}
	return nil
}

// cgroups wants what resource limits need, of version 1 or 2.
func cgroups() error {
	needs := []string{"cpu", "memory", "pids"}
	unified, err := os.ReadFile("/sys/fs/cgroup/cgroup.controllers")
	if err == nil {
		have := strings.Fields(string(unified))
		needs = append(needs, "io")
		for _, n := range needs {
			if !contains(have, n) {
				return fmt.Errorf("cgroup v2 lacks the %s controller", n)
			}
		}
		return nil
	}
	for _, n := range append(needs, "devices", "freezer") {
		if exists(filepath.Join("/sys/fs/cgroup", n)) != nil {
			return fmt.Errorf("the %s controller is not mounted at /sys/fs/cgroup/%s", n, n)
		}
	}
	return nil
}

func contains(have []string, want string) bool {
	for _, h := range have {
		if h == want {
			return true
		}
	}
	return false
}

func probeName() string { return fmt.Sprintf("sk%x", os.Getpid()) }

func nftables() error {
	name := probeName()
	b := nft.NewTable(nft.IPv4, name).Begin()
	b.AddSet(nft.Set{Name: "probe", Key: []nft.Field{nft.Random(2), nft.Daddr, nft.Proto, nft.Dport}, Value: []nft.Field{nft.Daddr, nft.Dport}})
	b.AddChains(nft.Chain{Name: "probe", Hook: &nft.Hook{Type: "nat", Point: "postrouting", Priority: 100}, Rules: []nft.Rule{
		{nft.Equal{Field: nft.CtStatus, Mask: nft.CtDNAT, Value: nft.CtDNAT}, nft.Equal{Field: nft.DaddrType, Value: nft.AddrTypeLocal}, nft.Masquerade{}},
	}})
	if err := b.Commit(); err != nil {
		return err
	}
	return nft.Remove(nft.IPv4, name)
}

func links() error {
	name := probeName()
	if err := netlink.EnsureBridge(netlink.Bridge{Name: name}); err != nil {
		return err
	}
	return netlink.RemoveLink(name)
}

func address() error {
	_, err := netlink.DefaultAddress()
	return err
}

func diskSpace(dir string) error {
	for ; dir != "/" && exists(dir) != nil; dir = filepath.Dir(dir) {
	}
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("statfs %s: %w", dir, err)
	}
	if free := st.Bavail * uint64(st.Bsize); free < minFree {
		return fmt.Errorf("%d MiB free on the file system of %s, %d MiB needed", free>>20, dir, uint64(minFree)>>20)
	}
	return nil
}

// PortFree tells whether a TCP port of all addresses can be listened on.
func PortFree(port uint16) error {
	ln, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.IPv6Unspecified(), port)))
	if errors.Is(err, unix.EAFNOSUPPORT) {
		ln, err = net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.IPv4Unspecified(), port)))
	}
	if errors.Is(err, unix.EADDRINUSE) {
		return errors.New("taken by another process")
	}
	if err != nil {
		return err
	}
	return ln.Close()
}
