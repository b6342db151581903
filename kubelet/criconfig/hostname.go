package criconfig

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Hostname is the pod's host name and, with a subdomain, its domain.
func Hostname(clusterDomain string, pod *corev1.Pod) (host, domain string, err error) {
	if o := pod.Spec.HostnameOverride; o != nil {
		if errs := validation.IsDNS1123Subdomain(*o); len(errs) > 0 {
			return "", "", fmt.Errorf("pod HostnameOverride %q is not a valid DNS subdomain: %s", *o, strings.Join(errs, ";"))
		}
		return cut(*o), "", nil
	}
	host = pod.Name
	if h := pod.Spec.Hostname; h != "" {
		if errs := validation.IsDNS1123Label(h); len(errs) > 0 {
			return "", "", fmt.Errorf("pod Hostname %q is not a valid DNS label: %s", h, strings.Join(errs, ";"))
		}
		host = h
	}
	if s := pod.Spec.Subdomain; s != "" {
		if errs := validation.IsDNS1123Label(s); len(errs) > 0 {
			return "", "", fmt.Errorf("pod Subdomain %q is not a valid DNS label: %s", s, strings.Join(errs, ";"))
		}
		domain = s + "." + pod.Namespace + ".svc." + clusterDomain
	}
	return cut(host), domain, nil
}

// cut keeps a host name within the kernel's 63 bytes.
func cut(s string) string {
	if len(s) > 63 {
		s = strings.TrimRight(s[:63], "-.")
	}
	return s
}

// HostsFile is the /etc/hosts that a pod gets. hostFile is the node's own, for
// pods in its network.
func HostsFile(clusterDomain string, pod *corev1.Pod, ips []string, hostFile []byte) ([]byte, error) {
	var b strings.Builder
	if pod.Spec.HostNetwork {
		b.WriteString("# Kubernetes-managed hosts file (host network).\n")
		b.Write(hostFile)
	} else {
		host, domain, err := Hostname(clusterDomain, pod)
		if err != nil {
			return nil, err
		}
		b.WriteString("# Kubernetes-managed hosts file.\n" +
			"127.0.0.1\tlocalhost\n" +
			"::1\tlocalhost ip6-localhost ip6-loopback\n" +
			"fe00::0\tip6-localnet\n" +
			"fe00::0\tip6-mcastprefix\n" +
			"fe00::1\tip6-allnodes\n" +
			"fe00::2\tip6-allrouters\n")
		for _, ip := range ips {
			b.WriteString(ip + "\t")
			if domain != "" {
				b.WriteString(host + "." + domain + "\t")
			}
			b.WriteString(host + "\n")
		}
	}
	if len(pod.Spec.HostAliases) > 0 {
		b.WriteString("\n# Entries added by HostAliases.\n")
		for _, a := range pod.Spec.HostAliases {
			b.WriteString(a.IP + "\t" + strings.Join(a.Hostnames, "\t") + "\n")
		}
	}
	return []byte(b.String()), nil
}
