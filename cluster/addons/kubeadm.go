package addons

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"
)

// ConfigMaps that joining nodes read, under kubeadm's names.
const (
	clusterInfoName   = "cluster-info"
	kubeadmConfigName = "kubeadm-config"
	kubeletConfigName = "kubelet-config"
	proxyConfigName   = "kube-proxy"

	kubeconfigKey    = "kubeconfig"
	clusterConfigKey = "ClusterConfiguration"
	kubeletKey       = "kubelet"
	proxyKey         = "config.conf"
)

// Join is what a node must know to join the cluster. It is kept in the API as kubeadm keeps
// it, so that `kubeadm join` and `skiff agent` read the same objects.
type Join struct {
	ClusterName string
	// Server is the URL of the API server as other machines reach it.
	Server string
	// CA is the cluster's, as PEM.
	CA                     []byte
	PodCIDRs, ServiceCIDRs []netip.Prefix
	DNS                    []netip.Addr
	Domain                 string
	// Version of Kubernetes, with its v.
	Version string
}

// EnsureJoin makes what is missing of the ConfigMaps. Where the server is, its CA and its
// version follow; all else may have been changed by administrators and stays.
func EnsureJoin(ctx context.Context, client kubernetes.Interface, j Join) error {
	all, err := j.configMaps()
	if err != nil {
		return err
	}
	for _, want := range all {
		if err := ensureConfigMap(ctx, client, want, j); err != nil {
			return err
		}
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "kube-proxy"}}
	if _, err := client.CoreV1().ServiceAccounts(account.Namespace).Create(ctx, account, metav1.CreateOptions{FieldManager: manager}); failed(err) {
		return fmt.Errorf("create service account %s: %w", account.Name, err)
	}
	return nil
}

func ensureConfigMap(ctx context.Context, client kubernetes.Interface, want *corev1.ConfigMap, j Join) error {
	c := client.CoreV1().ConfigMaps(want.Namespace)
	have, err := c.Get(ctx, want.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		if _, err := c.Create(ctx, want, metav1.CreateOptions{FieldManager: manager}); failed(err) {
			return fmt.Errorf("create config map %s: %w", want.Name, err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("get config map %s: %w", want.Name, err)
	}
	next := have.DeepCopy()
	if next.Data == nil {
		next.Data = map[string]string{}
	}
	switch want.Name {
	case clusterInfoName: // the signatures are the bootstrap signer's
		next.Data[kubeconfigKey] = want.Data[kubeconfigKey]
	case kubeadmConfigName:
		if next.Data[clusterConfigKey], err = j.follow(next.Data[clusterConfigKey]); err != nil {
			return fmt.Errorf("config map %s/%s: %s: %w", want.Namespace, want.Name, clusterConfigKey, err)
		}
	}
	if maps.Equal(have.Data, next.Data) {
		return nil
	}
	if _, err := c.Update(ctx, next, metav1.UpdateOptions{FieldManager: manager}); err != nil {
		return fmt.Errorf("update config map %s: %w", want.Name, err)
	}
	return nil
}

// follow sets the version and where the API servers are in a ClusterConfiguration.
func (j *Join) follow(text string) (string, error) {
	var c map[string]any
	if err := yaml.Unmarshal([]byte(text), &c); err != nil {
		return "", err
	}
	endpoint := strings.TrimPrefix(j.Server, "https://")
	if c["kubernetesVersion"] == j.Version && c["controlPlaneEndpoint"] == endpoint {
		return text, nil
	}
	if c == nil {
		c = map[string]any{}
	}
	c["kubernetesVersion"], c["controlPlaneEndpoint"] = j.Version, endpoint
	out, err := yaml.Marshal(c)
	return string(out), err
}

func (j *Join) configMaps() ([]*corev1.ConfigMap, error) {
	info := clientcmdapi.NewConfig()
	info.Clusters[""] = &clientcmdapi.Cluster{Server: j.Server, CertificateAuthorityData: j.CA}
	kubeconfig, err := clientcmd.Write(*info)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", clusterInfoName, err)
	}
	var firstErr error
	text := func(v map[string]any) string {
		out, err := yaml.Marshal(v)
		if err != nil && firstErr == nil {
			firstErr = fmt.Errorf("encode %s: %w", v["kind"], err)
		}
		return string(out)
	}
	system := func(name string, data map[string]string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: name}, Data: data}
	}
	proxy := system(proxyConfigName, map[string]string{
		proxyKey: text(map[string]any{
			"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
			"bindAddress": "0.0.0.0", "clusterCIDR": join(j.PodCIDRs), "mode": "nftables",
			"clientConnection": map[string]any{"kubeconfig": "/var/lib/kube-proxy/kubeconfig.conf"},
		}),
		"kubeconfig.conf": text(map[string]any{
			"apiVersion": "v1", "kind": "Config", "current-context": "default",
			"clusters": []any{map[string]any{"name": "default", "cluster": map[string]any{
				"certificate-authority": "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt", "server": j.Server}}},
			"contexts": []any{map[string]any{"name": "default", "context": map[string]any{"cluster": "default", "namespace": "default", "user": "default"}}},
			"users":    []any{map[string]any{"name": "default", "user": map[string]any{"tokenFile": "/var/run/secrets/kubernetes.io/serviceaccount/token"}}},
		}),
	})
	proxy.Labels = map[string]string{"app": "kube-proxy"}
	all := []*corev1.ConfigMap{
		{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespacePublic, Name: clusterInfoName}, Data: map[string]string{kubeconfigKey: string(kubeconfig)}},
		system(kubeadmConfigName, map[string]string{clusterConfigKey: text(j.clusterConfiguration())}),
		system(kubeletConfigName, map[string]string{kubeletKey: text(j.kubeletConfiguration())}),
		proxy,
	}
	return all, firstErr
}

// clusterConfiguration is kubeadm.k8s.io/v1beta4's.
func (j *Join) clusterConfiguration() map[string]any {
	return map[string]any{
		"apiVersion": "kubeadm.k8s.io/v1beta4", "kind": "ClusterConfiguration",
		"clusterName": j.ClusterName, "kubernetesVersion": j.Version,
		"controlPlaneEndpoint": strings.TrimPrefix(j.Server, "https://"),
		"certificatesDir":      "/etc/kubernetes/pki", "imageRepository": "registry.k8s.io",
		"networking": map[string]any{"dnsDomain": j.Domain, "podSubnet": join(j.PodCIDRs), "serviceSubnet": join(j.ServiceCIDRs)},
	}
}

// kubeletConfiguration is what kubeadm writes into the file of a kubelet that joins.
func (j *Join) kubeletConfiguration() map[string]any {
	var dns []string
	for _, a := range j.DNS {
		dns = append(dns, a.String())
	}
	return map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"authentication": map[string]any{
			"anonymous": map[string]any{"enabled": false}, "webhook": map[string]any{"enabled": true},
			"x509": map[string]any{"clientCAFile": "/etc/kubernetes/pki/ca.crt"},
		},
		"authorization": map[string]any{"mode": "Webhook"},
		"cgroupDriver":  "systemd", "staticPodPath": "/etc/kubernetes/manifests",
		"healthzBindAddress": "127.0.0.1", "healthzPort": 10248,
		"clusterDNS": dns, "clusterDomain": j.Domain,
		// The API server verifies kubelets, so their certificates are to be the cluster's.
		"rotateCertificates": true, "serverTLSBootstrap": true,
	}
}

// join lists prefixes as kubeadm does.
func join(list []netip.Prefix) string {
	var out []string
	for _, p := range list {
		out = append(out, p.String())
	}
	return strings.Join(out, ",")
}
