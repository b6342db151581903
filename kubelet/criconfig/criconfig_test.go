package criconfig

import (
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/kubelet/environ"
)

func node() *Node {
	return &Node{
		PodLogsDir: "/var/log/pods", SeccompDir: "/k/seccomp", CgroupParent: "skiff", ClusterDNS: []string{"10.96.0.10"}, ClusterDomain: "cluster.local",
		HostDNS: DNS{Servers: []string{"1.1.1.1"}, Searches: []string{"corp"}, Options: []string{"timeout:2"}}, MemoryCapacity: 10 << 30, CPUQuota: true, HugePageSizes: []string{"2MB"},
	}
}

func pod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u1", Labels: map[string]string{"app": "x"}},
		Spec: corev1.PodSpec{
			DNSPolicy: corev1.DNSClusterFirst,
			Containers: []corev1.Container{{
				Name: "c", Image: "img", Command: []string{"run", "$(A)"},
				Ports: []corev1.ContainerPort{{ContainerPort: 80}, {ContainerPort: 53, HostPort: 5353, Protocol: corev1.ProtocolUDP}},
				Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("250m"), corev1.ResourceMemory: resource.MustParse("1Gi")},
					Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m"), corev1.ResourceMemory: resource.MustParse("2Gi")},
				},
			}},
		},
	}
}

func TestSandbox(t *testing.T) {
	p := pod()
	p.Spec.Subdomain = "sub"
	p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: ptr.To[int64](7), SupplementalGroups: []int64{8}, Sysctls: []corev1.Sysctl{{Name: "net.core.somaxconn", Value: "1"}}}
	cfg, warnings, err := Sandbox(node(), p, 3, nil)
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	if cfg.Metadata.Attempt != 3 || cfg.Hostname != "p" || cfg.LogDirectory != "/var/log/pods/ns_p_u1" || cfg.Linux.CgroupParent != "/skiff/kubepods/burstable/podu1" {
		t.Errorf("%+v", cfg)
	}
	if cfg.Labels["io.kubernetes.pod.uid"] != "u1" || cfg.Labels["app"] != "x" {
		t.Errorf("labels %v", cfg.Labels)
	}
	if len(cfg.PortMappings) != 1 || cfg.PortMappings[0].HostPort != 5353 || cfg.PortMappings[0].Protocol != runtimeapi.Protocol_UDP {
		t.Errorf("ports %v", cfg.PortMappings)
	}
	if got := cfg.Linux.SecurityContext.SupplementalGroups; !reflect.DeepEqual(got, []int64{7, 8}) {
		t.Errorf("groups %v", got)
	}
	if got := strings.Join(cfg.DnsConfig.Searches, " "); got != "ns.svc.cluster.local svc.cluster.local cluster.local corp" {
		t.Errorf("searches %q", got)
	}
	p.Spec.SetHostnameAsFQDN = ptr.To(true)
	if cfg, _, _ = Sandbox(node(), p, 0, nil); cfg.Hostname != "p.sub.ns.svc.cluster.local" {
		t.Errorf("FQDN %q", cfg.Hostname)
	}
}

func TestContainer(t *testing.T) {
	p := pod()
	c := &p.Spec.Containers[0]
	c.SecurityContext = &corev1.SecurityContext{
		Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"NET_ADMIN"}, Drop: []corev1.Capability{"ALL"}}, AllowPrivilegeEscalation: ptr.To(false),
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: ptr.To("a.json")},
	}
	cfg, err := Container(node(), p, c, Attempt{RestartCount: 2, ImageRef: "sha256:1", UID: ptr.To[int64](1000), Env: []environ.Var{{Name: "A", Value: "b"}}})
	if err != nil {
		t.Fatal(err)
	}
	r, sc := cfg.Linux.Resources, cfg.Linux.SecurityContext
	if r.CpuShares != 256 || r.CpuQuota != 50000 || r.MemoryLimitInBytes != 2<<30 || r.OomScoreAdj != 900 || len(r.HugepageLimits) != 1 {
		t.Errorf("resources %+v", r)
	}
	if !sc.NoNewPrivs || sc.RunAsUser.Value != 1000 || sc.Seccomp.LocalhostRef != "/k/seccomp/a.json" || sc.Capabilities.DropCapabilities[0] != "ALL" || len(sc.MaskedPaths) < 12 {
		t.Errorf("security %+v", sc)
	}
	if cfg.Command[1] != "b" || cfg.LogPath != "c/2.log" || cfg.Image.UserSpecifiedImage != "img" || cfg.Annotations["io.kubernetes.container.restartCount"] != "2" {
		t.Errorf("%+v", cfg)
	}
}

func TestNonRoot(t *testing.T) {
	p := pod()
	p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true)}
	for _, tc := range []struct {
		uid  *int64
		name string
		err  string
	}{
		{ptr.To[int64](0), "", "image will run as root"}, {nil, "nginx", "non-numeric user (nginx)"}, {ptr.To[int64](5), "", ""},
	} {
		_, err := Container(node(), p, &p.Spec.Containers[0], Attempt{UID: tc.uid, Username: tc.name})
		if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%v %q: %v", tc.uid, tc.name, err)
		}
	}
}

func TestOOMScore(t *testing.T) {
	p := pod()
	c := &p.Spec.Containers[0]
	for q, want := range map[corev1.PodQOSClass]int64{corev1.PodQOSGuaranteed: -997, corev1.PodQOSBestEffort: 1000, corev1.PodQOSBurstable: 900} {
		p.Status.QOSClass = q
		if got := OOMScore(p, c, 10<<30); got != want {
			t.Errorf("%s: %d, want %d", q, got, want)
		}
	}
	c.Resources.Requests, p.Status.QOSClass = nil, corev1.PodQOSBurstable
	if got := OOMScore(p, c, 10<<30); got != 999 {
		t.Errorf("burstable without request: %d", got)
	}
}

func TestDNSPolicies(t *testing.T) {
	for _, tc := range []struct {
		name    string
		policy  corev1.DNSPolicy
		host    bool
		servers string
	}{
		{"cluster", corev1.DNSClusterFirst, false, "10.96.0.10"}, {"host network falls back", corev1.DNSClusterFirst, true, "1.1.1.1"},
		{"with host net", corev1.DNSClusterFirstWithHostNet, true, "10.96.0.10"}, {"default", corev1.DNSDefault, false, "1.1.1.1"}, {"none", corev1.DNSNone, false, "9.9.9.9"},
	} {
		p := pod()
		p.Spec.DNSPolicy, p.Spec.HostNetwork = tc.policy, tc.host
		if tc.policy == corev1.DNSNone {
			p.Spec.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{"9.9.9.9"}, Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: ptr.To("2")}}}
		}
		d, _ := PodDNS(node(), p)
		if got := strings.Join(d.Servers, ","); got != tc.servers {
			t.Errorf("%s: %s", tc.name, got)
		}
	}
	p := pod()
	p.Spec.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{"1", "2", "3"}, Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: ptr.To("2")}}}
	d, w := PodDNS(node(), p)
	if len(d.Servers) != 3 || len(w) != 1 || d.Options[0] != "ndots:2" {
		t.Errorf("%+v %v", d, w)
	}
}

func TestHostsFile(t *testing.T) {
	p := pod()
	p.Spec.Hostname, p.Spec.Subdomain = "h", "s"
	p.Spec.HostAliases = []corev1.HostAlias{{IP: "1.2.3.4", Hostnames: []string{"a", "b"}}}
	raw, err := HostsFile("cluster.local", p, []string{"10.244.0.2"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"10.244.0.2\th.s.ns.svc.cluster.local\th\n", "\n\n# Entries added by HostAliases.\n1.2.3.4\ta\tb\n"} {
		if !strings.Contains(string(raw), want) {
			t.Errorf("%q lacks %q", raw, want)
		}
	}
}

func TestPodLimits(t *testing.T) {
	p := pod()
	if l := PodLimits(p, true, 100); l.CPUShares != 256 || l.CPUQuota != 50000 || l.MemoryBytes != 2<<30 || l.Pids != 100 {
		t.Errorf("%+v", l)
	}
	p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "unlimited"})
	if l := PodLimits(p, true, 0); l.CPUQuota != 0 || l.MemoryBytes != 0 {
		t.Errorf("a container without limits makes the pod unlimited: %+v", l)
	}
}

func FuzzParseResolvConf(f *testing.F) {
	f.Add("nameserver 1.1.1.1\nsearch a. b .\noptions ndots:5 x\n")
	f.Fuzz(func(t *testing.T, s string) { _, _ = ParseResolvConf(strings.NewReader(s)) })
}
