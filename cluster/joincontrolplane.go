package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/skiff-k8s/skiff/cluster/addons"
	"github.com/skiff-k8s/skiff/cluster/certs"
)

// JoinedFrom is what a further control plane was told by the others.
type JoinedFrom struct {
	// EtcdMembers are client URLs of etcd's members when it joined.
	EtcdMembers []string `json:"etcdMembers,omitempty"`
}

// ControlPlaneJoin says which cluster a machine becomes a further control plane of.
type ControlPlaneJoin struct {
	// Server, Token, CAHash and SkipCA as in JoinOptions.
	Server, Token, CAHash string
	SkipCA                bool
	// CertificateKey decrypts the cluster's keys.
	CertificateKey string
}

// given says whether any of it is.
func (j ControlPlaneJoin) given() bool { return j != ControlPlaneJoin{} }

// joinSettings are what control planes of a cluster have the same and kubeadm's objects do not say.
type joinSettings struct {
	EtcdMembers     []string        `json:"etcdMembers,omitempty"`
	Etcd            *ExternalEtcd   `json:"etcd,omitempty"`
	SigningDuration metav1.Duration `json:"signingDuration,omitzero"`
	APIPort         uint16          `json:"apiPort"`
	KubeletPort     uint16          `json:"kubeletPort"`
}

// UploadCerts puts what a further control plane needs into the cluster, and returns the key to it.
func UploadCerts(ctx context.Context, c *Config, p Paths, client kubernetes.Interface) (key string, err error) {
	if c.ControlPlaneEndpoint == "" {
		return "", errors.New("this cluster has one control plane: start it with skiff server --control-plane-endpoint HOST:PORT, which leads to whichever runs, before others join")
	}
	set := joinSettings{Etcd: c.Etcd, SigningDuration: c.SigningDuration, APIPort: c.APIPort, KubeletPort: c.KubeletPort}
	if c.Etcd == nil {
		admin, err := EtcdAdmin(c, p)
		if err != nil {
			return "", err
		}
		defer admin.Close()
		members, err := admin.Members(ctx)
		if err != nil {
			return "", err
		}
		for _, m := range members {
			set.EtcdMembers = append(set.EtcdMembers, m.ClientURLs...)
		}
	}
	b := certs.Bundle{}
	if b.Files, err = certs.Read(p.PKI(), c.Etcd == nil); err != nil {
		return "", err
	}
	if b.Settings, err = json.Marshal(set); err != nil {
		return "", fmt.Errorf("encode settings: %w", err)
	}
	key = certs.NewKey()
	return key, certs.Upload(ctx, client, key, b, addons.BootstrapGroup, time.Now())
}

// JoinControlPlaneCommand is what a machine is to run that becomes a further control plane.
func JoinControlPlaneCommand(c *Config, t Token, key string) string {
	return fmt.Sprintf("skiff server --server %s --token %s --certificate-key %s", c.PublicServer(), t, key)
}

// joinControlPlane makes the data directory of a further control plane; one that has joined is
// left as it is, and needs none of the flags again.
func (o *UpOptions) joinControlPlane(ctx context.Context, s *steps) error {
	c, err := Load(o.Dir)
	switch {
	case err == nil && c.Joined == nil && o.Join.given():
		return fmt.Errorf("--data-dir %s holds a control plane that others join; use another directory to join one, or leave out --server, --token and --certificate-key", o.Dir)
	case err == nil || !o.Join.given():
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	if c, err = o.newJoined(ctx); err != nil {
		return err
	}
	s.done("joined at " + c.PublicServer())
	return nil
}

func (o *UpOptions) newJoined(ctx context.Context) (*Config, error) {
	j := o.Join
	if j.CertificateKey == "" {
		return nil, errors.New("--certificate-key is required: skiff token create --control-plane prints it on a control plane (a node alone joins with skiff agent)")
	}
	key, err := certs.ParseKey(j.CertificateKey)
	if err != nil {
		return nil, fmt.Errorf("--certificate-key %w", err)
	}
	server, err := serverURL(j.Server)
	if err != nil {
		return nil, err
	}
	as := JoinOptions{Dir: o.Dir, Server: server, Token: j.Token, CAHash: j.CAHash, SkipCA: j.SkipCA, Progress: o.Progress}
	token, err := as.token()
	if err != nil {
		return nil, err
	}
	if err := unused(o.Dir); err != nil {
		return nil, err
	}
	ca, err := as.discover(ctx, server, token)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host: server, UserAgent: "skiff", BearerToken: token.Bearer(), TLSClientConfig: rest.TLSClientConfig{CAData: ca}, Timeout: time.Minute,
	})
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	c, err := newConfig(o.Name)
	if err != nil {
		return nil, err
	}
	if o.Reach.NodeName != "" {
		c.NodeName = o.Reach.NodeName
	}
	if len(o.Reach.NodeIPs) > 0 {
		c.NodeIPs = o.Reach.NodeIPs
	} else if a, err := addressTowards(server); err == nil {
		c.NodeIPs[0] = a
	}
	if err := nameFree(ctx, client, c.NodeName); err != nil {
		return nil, explain(server, err)
	}
	bundle, err := certs.Download(ctx, client, key)
	if err != nil {
		return nil, explain(server, err)
	}
	if mine, err := caHashes(bundle.Files["ca.crt"]); err != nil || token.CAHash != "" && mine[0] != token.CAHash {
		return nil, fmt.Errorf("the cluster's keys in Secret kube-system/%s are not of the CA that the token says; make a new command: skiff token create --control-plane", certs.SecretName)
	}
	if err := c.readJoin(ctx, client, ca, bundle.Settings); err != nil {
		return nil, explain(server, err)
	}
	if err := c.takeJoined(*o); err != nil {
		return nil, err
	}
	if err := bundle.Write((Paths{o.Dir}).PKI()); err != nil {
		return nil, err
	}
	return c, c.save(o.Dir) // last: it makes the directory a control plane's
}

// readJoin takes the cluster's settings from where kubeadm and skiff keep them.
func (c *Config) readJoin(ctx context.Context, client kubernetes.Interface, ca, settings []byte) error {
	cm, err := client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, "kubeadm-config", metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read the cluster's settings (ConfigMap kube-system/kubeadm-config): %w", err)
	}
	var said struct{ ControlPlaneEndpoint string }
	if err := yaml.Unmarshal([]byte(cm.Data["ClusterConfiguration"]), &said); err != nil {
		return fmt.Errorf("read the cluster's settings: ConfigMap kube-system/kubeadm-config: %w", err)
	}
	if said.ControlPlaneEndpoint == "" {
		return errors.New("the cluster has no control-plane endpoint, so that others cannot join its control plane: start it with skiff server --control-plane-endpoint")
	}
	var n NodeConfig
	if err := n.readSettings(ctx, client, ca); err != nil {
		return err
	}
	var set joinSettings
	if len(settings) > 0 {
		if err := json.Unmarshal(settings, &set); err != nil {
			return fmt.Errorf("read the cluster's settings from secret %s: %w", certs.SecretName, err)
		}
	}
	if set.APIPort == 0 {
		return fmt.Errorf("secret kube-system/%s was made by another program than skiff; make it anew on a control plane: skiff token create --control-plane", certs.SecretName)
	}
	c.ControlPlaneEndpoint = said.ControlPlaneEndpoint
	c.PodCIDRs, c.ServiceCIDRs, c.Domain = n.PodCIDRs, n.ServiceCIDRs, n.Domain
	c.APIPort, c.KubeletPort, c.SigningDuration, c.Etcd = set.APIPort, set.KubeletPort, set.SigningDuration, set.Etcd
	c.Joined = &JoinedFrom{EtcdMembers: set.EtcdMembers}
	return nil
}

// takeJoined checks what the user says against the cluster.
func (c *Config) takeJoined(o UpOptions) error {
	if o.Reach.Endpoint != "" {
		if got, err := parseEndpoint(o.Reach.Endpoint, c.APIPort); err != nil {
			return err
		} else if got != c.ControlPlaneEndpoint {
			return fmt.Errorf("--control-plane-endpoint=%s: the cluster has %s; leave it out", o.Reach.Endpoint, c.ControlPlaneEndpoint)
		}
	}
	switch {
	case c.Etcd == nil && o.Etcd != nil:
		return errors.New("--etcd-servers: this cluster's control planes are etcd's members themselves; leave it out")
	case c.Etcd != nil && o.Etcd == nil:
		return fmt.Errorf("this cluster keeps its state in an external etcd: give --etcd-servers %s, and --etcd-cafile, --etcd-certfile and --etcd-keyfile as on the other control planes", strings.Join(c.Etcd.Servers, ","))
	case c.Etcd != nil:
		c.Etcd = o.Etcd
	}
	n := c.node()
	return n.check()
}
