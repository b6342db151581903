package side

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/skiff-k8s/skiff/cluster"
)

// etcdURL is plain HTTP on loopback: upstream gets what costs it least.
const etcdURL = "http://127.0.0.1:2379"

// startUpstream runs etcd and the API server with kubeadm's flags, where those change what is measured.
func (k *Cluster) startUpstream() error {
	k.Audit = true
	ca, key, service := k.pki("ca.crt"), k.pki("sa.key"), k.Config.ServiceCIDRs[0].String()
	return k.twins([][]string{
		{"etcd", "--name=bench", "--data-dir=" + k.path("etcd-upstream"),
			"--listen-client-urls=" + etcdURL, "--advertise-client-urls=" + etcdURL,
			"--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380",
			"--initial-cluster=bench=http://127.0.0.1:2380", "--enable-pprof"},
		append([]string{"kube-apiserver", "--etcd-servers=" + etcdURL,
			"--advertise-address=" + k.Config.NodeIPs[0].String(), fmt.Sprintf("--secure-port=%d", k.Config.APIPort),
			"--tls-cert-file=" + k.pki("apiserver.crt"), "--tls-private-key-file=" + k.pki("apiserver.key"),
			"--client-ca-file=" + ca, "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
			"--enable-bootstrap-token-auth=true", "--allow-privileged=true",
			"--service-cluster-ip-range=" + service, "--service-account-issuer=https://kubernetes.default.svc." + k.Config.Domain,
			"--service-account-key-file=" + k.pki("sa.pub"), "--service-account-signing-key-file=" + key,
			"--kubelet-client-certificate=" + k.pki("apiserver-kubelet-client.crt"), "--kubelet-client-key=" + k.pki("apiserver-kubelet-client.key"),
			"--requestheader-client-ca-file=" + k.pki("front-proxy-ca.crt"), "--requestheader-allowed-names=front-proxy-client",
			"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
			"--requestheader-extra-headers-prefix=X-Remote-Extra-",
			"--proxy-client-cert-file=" + k.pki("front-proxy-client.crt"), "--proxy-client-key-file=" + k.pki("front-proxy-client.key")},
			"--audit-policy-file="+k.path("audit.yaml"), "--audit-log-path="+k.path("log/audit.log")),
	})
}

// startManagers runs the other two, which end unless the API server is ready.
func (k *Cluster) startManagers() error {
	scheduler, err := k.Kubeconfig("system:kube-scheduler")
	if err != nil {
		return err
	}
	manager, err := k.Kubeconfig("system:kube-controller-manager")
	if err != nil {
		return err
	}
	ca := k.pki("ca.crt")
	return k.twins([][]string{
		{"kube-controller-manager", "--kubeconfig=" + manager, "--authentication-kubeconfig=" + manager, "--authorization-kubeconfig=" + manager,
			"--use-service-account-credentials=true", "--service-account-private-key-file=" + k.pki("sa.key"), "--root-ca-file=" + ca,
			"--cluster-signing-cert-file=" + ca, "--cluster-signing-key-file=" + k.pki("ca.key"),
			"--controllers=*,bootstrap-signer-controller,token-cleaner-controller", "--bind-address=127.0.0.1",
			"--allocate-node-cidrs=true", "--cluster-cidr=" + k.Config.PodCIDRs[0].String(), "--service-cluster-ip-range=" + k.Config.ServiceCIDRs[0].String()},
		{"kube-scheduler", "--kubeconfig=" + scheduler, "--authentication-kubeconfig=" + scheduler, "--authorization-kubeconfig=" + scheduler,
			"--bind-address=127.0.0.1"},
	})
}

// twins starts binaries of upstream, each by its name and flags.
func (k *Cluster) twins(commands [][]string) error {
	for _, argv := range commands {
		if _, err := k.Exec(argv[0], append([]string{filepath.Join(k.c.Twins, argv[0])}, argv[1:]...)...); err != nil {
			return err
		}
	}
	return nil
}

// startSkiff runs the control plane as skiff up would.
func (k *Cluster) startSkiff() error {
	k.Audit = true
	k.Config.Audit = cluster.AuditConfig{PolicyFile: k.path("audit.yaml"), LogPath: k.path("log/audit.log")}
	text, err := json.Marshal(k.Config)
	if err != nil {
		return err
	}
	if err := os.WriteFile(cluster.Paths{Dir: k.dir}.Config(), text, 0o600); err != nil {
		return err
	}
	_, err = k.Exec("skiff", k.c.Skiff, "control-plane", "--data-dir", k.dir)
	return err
}
