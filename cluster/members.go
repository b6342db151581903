package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/skiff-k8s/skiff/cluster/pki"
	"github.com/skiff-k8s/skiff/cluster/process"
	"github.com/skiff-k8s/skiff/store/etcd"
)

// etcd's usual ports, where its members find each other and clients find them.
const (
	etcdClientPort = 2379
	etcdPeerPort   = 2380
)

// Names of the certificates of etcd's members, as kubeadm's.
const (
	etcdCAName     = "etcd/ca"
	etcdServerName = "etcd/server"
	etcdPeerName   = "etcd/peer"
	etcdClientName = "apiserver-etcd-client"
)

// severalMembers says that the control plane has, or may get, others beside it whose etcd
// is one with its own.
func (c *Config) severalMembers() bool {
	return c.ControlPlaneEndpoint != "" && c.Etcd == nil && !c.lacks(APIServer)
}

// quorum is how the members of etcd reach each other; nil: there is one.
func (c *Config) quorum(p Paths) *etcd.Quorum {
	if !c.severalMembers() {
		return nil
	}
	d := pki.Dir{Path: p.PKI()}
	q := &etcd.Quorum{
		Peer: netip.AddrPortFrom(c.NodeIPs[0], etcdPeerPort), Client: netip.AddrPortFrom(c.NodeIPs[0], etcdClientPort),
		Token: c.ID,
	}
	q.CAFile, _ = d.Files(etcdCAName)
	q.ServerCert, q.ServerKey = d.Files(etcdServerName)
	q.PeerCert, q.PeerKey = d.Files(etcdPeerName)
	q.ClientCert, q.ClientKey = d.Files(etcdClientName)
	if c.Joined != nil {
		q.Join = c.Joined.EtcdMembers
	}
	return q
}

// ensureEtcdCertificates makes or renews them.
func (c *Config) ensureEtcdCertificates(d pki.Dir, k *Credentials) error {
	if !c.severalMembers() {
		return nil
	}
	var err error
	if k.EtcdCA, err = d.Authority(etcdCAName, "etcd-ca"); err != nil {
		return err
	}
	// A member shows the same kind of certificate to whom it connects and who connects to it.
	member := pki.Leaf{
		CommonName: c.NodeName, Server: true, Client: true, DNSNames: []string{c.NodeName, "localhost"},
		IPs: append([]netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}, c.NodeIPs...),
	}
	for name, leaf := range map[string]pki.Leaf{
		etcdServerName: member, etcdPeerName: member,
		etcdClientName: {CommonName: "kube-apiserver-etcd-client", Client: true},
	} {
		if _, err := d.Leaf(k.EtcdCA, name, leaf); err != nil {
			return err
		}
	}
	return nil
}

// EtcdAdmin speaks to etcd of the control plane on this host.
func EtcdAdmin(c *Config, p Paths) (*etcd.Admin, error) {
	if c.Etcd != nil {
		return nil, errors.New("this cluster keeps its state in an etcd that others run (--etcd-servers): use etcdctl and etcdutl for it")
	}
	pid, err := process.Running(p.Lock(ControlPlane))
	if err != nil {
		return nil, err
	}
	if pid == 0 {
		return nil, fmt.Errorf("the control plane in %s does not run: start it (skiff server, skiff up), or ask on another control plane", p.Dir)
	}
	return etcd.Dial(etcd.Access{}, "unix://"+p.EtcdSocket())
}

// Member is one of etcd's, and how it is.
type Member struct {
	etcd.MemberInfo
	etcd.Status
	// Leader tells that it leads; Problem why it does not answer.
	Leader  bool
	Problem error
}

// EtcdMembers lists etcd's members and asks each how it is.
func EtcdMembers(ctx context.Context, c *Config, p Paths) ([]Member, error) {
	admin, err := EtcdAdmin(c, p)
	if err != nil {
		return nil, err
	}
	defer admin.Close()
	list, err := admin.Members(ctx)
	if err != nil {
		return nil, err
	}
	var out []Member
	for _, info := range list {
		m := Member{MemberInfo: info}
		m.Status, m.Problem = memberStatus(ctx, c, p, admin, info)
		m.Leader = m.Problem == nil && m.Status.Leader == info.ID
		out = append(out, m)
	}
	return out, nil
}

func memberStatus(ctx context.Context, c *Config, p Paths, own *etcd.Admin, m etcd.MemberInfo) (etcd.Status, error) {
	if m.Name == c.NodeName {
		return own.Status(ctx, "unix://"+p.EtcdSocket())
	}
	q := c.quorum(p)
	if q == nil || len(m.ClientURLs) == 0 {
		return etcd.Status{}, errors.New("it has never started")
	}
	admin, err := etcd.Dial(q.Access(), m.ClientURLs...)
	if err != nil {
		return etcd.Status{}, err
	}
	defer admin.Close()
	return admin.Status(ctx, m.ClientURLs[0])
}

// RemoveEtcdMember takes a member away by its name or id.
func RemoveEtcdMember(ctx context.Context, c *Config, p Paths, which string) (etcd.MemberInfo, error) {
	admin, err := EtcdAdmin(c, p)
	if err != nil {
		return etcd.MemberInfo{}, err
	}
	defer admin.Close()
	list, err := admin.Members(ctx)
	if err != nil {
		return etcd.MemberInfo{}, err
	}
	for _, m := range list {
		if m.Name != which && strconv.FormatUint(m.ID, 16) != which {
			continue
		}
		if len(list) == 1 {
			return m, fmt.Errorf("%s is the only member of etcd: without it there is no cluster (skiff down --purge ends it)", which)
		}
		return m, admin.Remove(ctx, m.ID)
	}
	return etcd.MemberInfo{}, fmt.Errorf("etcd has no member %q; skiff etcd member ls shows names and ids", which)
}

// removedMember explains why a control plane that was removed does not start.
func removedMember(p Paths) error {
	if !etcd.Removed(p.Etcd()) {
		return nil
	}
	return fmt.Errorf("this control plane was removed from the cluster (skiff etcd member rm), and its data is of no use any more: skiff down --purge --data-dir %s takes it away, then the machine can join again", p.Dir)
}
