package main

import (
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
)

func componentCommands() map[string]*cobra.Command {
	out := map[string]*cobra.Command{}
	for _, c := range []*cobra.Command{kubeAPIServerCommand(), kubeSchedulerCommand(), kubeControllerManagerCommand(), cloudControllerManagerCommand(), kubeletCommand(), kubeProxyCommand()} {
		c.SilenceErrors, c.SilenceUsage = true, true
		out[c.Name()] = c
	}
	return out
}

// own are flags that upstream does not have.
var own = map[string][]string{
	// The second is a former name, the third deprecated: upstream takes both and does not name them.
	"kube-apiserver": {"etcd-data-dir", "audit-webhook-batch-initial-backoff", "apiserver-count"},
	"kubelet":        {"pod-logs-dir"},
}

// TestUpstreamsFlags compares with the flags of upstream's binaries of the version that is
// served; a name that ends in "?" is a switch there.
func TestUpstreamsFlags(t *testing.T) {
	for name, cmd := range componentCommands() {
		text, err := os.ReadFile(filepath.Join("testdata", "flags", name+".txt"))
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]bool{}
		for _, f := range strings.Fields(string(text)) {
			bare, isSwitch := strings.CutSuffix(f, "?")
			want[bare] = isSwitch
			have := cmd.Flags().Lookup(bare)
			switch {
			case have == nil:
				t.Errorf("%s does not know --%s", name, bare)
			case (have.NoOptDefVal != "") != isSwitch:
				t.Errorf("%s --%s: a switch upstream: %v, here %v", name, bare, isSwitch, have.NoOptDefVal != "")
			}
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if _, ok := want[f.Name]; !ok && !slices.Contains(own[name], f.Name) {
				t.Errorf("%s --%s: upstream has no such flag", name, f.Name)
			}
		})
	}
}

func TestFlagsThatAreWrongAreNamed(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	scheduler := "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
	kubelet := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
	proxy := "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
	for _, tt := range []struct {
		args, says string
	}{
		{"kube-apiserver --no-such-flag=1", "--no-such-flag"},
		{"kube-apiserver --oidc-issuer-url=https://x", "--oidc-issuer-url=https://x is not supported"},
		{"kube-apiserver --service-account-issuer=x --service-account-signing-key-file=x --service-account-key-file=x --service-cluster-ip-range=10.0.0.0/8 --authorization-mode=AlwaysAllow", "--authorization-mode=AlwaysAllow"},
		{"kube-apiserver --service-account-issuer=x --service-account-signing-key-file=x --service-account-key-file=x", "--service-cluster-ip-range is required"},
		{"kube-scheduler", "--kubeconfig is required"},
		{"kube-scheduler --kubeconfig=" + filepath.Join(dir, "missing"), "--kubeconfig: stat"},
		{"kube-scheduler --config=" + write("s1", scheduler+"parallelismm: 3\n"), `unknown field "parallelismm"`},
		{"kube-scheduler --config=" + write("s2", scheduler+"extenders: [{urlPrefix: http://x}]\n"), "extenders"},
		{"kube-scheduler --config=" + write("s3", scheduler+"profiles: [{pluginConfig: [{name: NodeAffinity, args: {added: 1}}]}]\n"), `profiles[0].pluginConfig[0]: args of NodeAffinity: unknown field "added"`},
		{"kube-scheduler --config=" + write("s4", scheduler+"profiles: [{plugins: {filter: {disabled: [{name: NodePort}]}}}]\n"), `profiles[0].plugins.filter: there is no plugin "NodePort"`},
		{"kube-scheduler --config=" + write("s6", scheduler+"profiles: [{plugins: {bind: {disabled: [{name: '*'}]}}}]\n"), "profiles[0].plugins.bind.disabled: DefaultBinder cannot be disabled"},
		{"kube-scheduler --config=" + write("s5", "apiVersion: v1\nkind: Pod\n"), `apiVersion "v1", kind "Pod"`},
		{"kube-controller-manager --kubeconfig=x --controllers=*,-deploymentt", "--controllers=-deploymentt"},
		{"kube-controller-manager --kubeconfig=x --allocate-node-cidrs --cluster-cidr=10.0.0.0/16,10.1.0.0/16", "--cluster-cidr=10.0.0.0/16,10.1.0.0/16: give one range, or one of IPv4 and one of IPv6"},
		{"kube-controller-manager --cloud-provider=aws", "--cloud-provider=aws"},
		{"kubelet", "--container-runtime-endpoint is required"},
		{"kubelet --config=" + write("k1", kubelet+"maxPod: 3\n"), `unknown field "maxPod"`},
		{"kubelet --config=" + write("k2", kubelet+"topologyManagerPolicy: restricted\n"), "topologyManagerPolicy is not supported"},
		{"kubelet --container-runtime-endpoint=unix:///x --register-with-taints=a", "--register-with-taints=a"},
		{"kube-proxy --proxy-mode=userspace", `--proxy-mode: "userspace" is no mode of a proxy; there are nftables, iptables, ipvs`},
		{"kube-proxy --proxy-mode=iptables --iptables-min-sync-period=1m", "--iptables-min-sync-period=1m0s: must be between 0 and --iptables-sync-period (30s)"},
		{"kube-proxy --config=" + write("p3", proxy+"mode: iptables\niptables: {syncPeriod: -1s}\n"), "--iptables-sync-period=-1s: must be more than 0"},
		{"kube-proxy --proxy-mode=ipvs --ipvs-exclude-cidrs=10.0.0.1", "--ipvs-exclude-cidrs"},
		{"kube-proxy --proxy-mode=ipvs --ipvs-tcp-timeout=-1s", "--ipvs-tcp-timeout=-1s: must not be negative"},
		{"kube-proxy --proxy-mode=ipvs --ipvs-scheduler=best", `--ipvs-scheduler="best" is none of the kernel's`},
		{"kube-proxy --nodeport-addresses=10.0.0.1", `--nodeport-addresses: "10.0.0.1" is neither a CIDR`},
		{"kube-proxy --iptables-masquerade-bit=32", "--iptables-masquerade-bit=32"},
		{"kube-proxy --config=" + write("p1", proxy+"nftables: {masqueradeAlll: true}\n"), `unknown field "nftables.masqueradeAlll"`},
		{"kube-proxy --config=" + write("p2", proxy+"nodePortAddresses: [primarily]\n"), `--nodeport-addresses: "primarily"`},
	} {
		args := strings.Fields(tt.args)
		cmd := componentCommands()[args[0]]
		cmd.SetArgs(args[1:])
		cmd.SetErr(new(strings.Builder))
		cmd.SetOut(new(strings.Builder))
		err := cmd.ExecuteContext(t.Context())
		if err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v, want %q", tt.args, err, tt.says)
		} else if strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: says more than a line: %v", tt.args, err)
		}
	}
}

// TestFlagsWithoutEffect are taken with a warning, and refused ones that ask for nothing.
func TestFlagsWithoutEffect(t *testing.T) {
	cmd := kubeSchedulerCommand()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	var log strings.Builder
	cmd.SetErr(&log)
	cmd.SetArgs([]string{"--contention-profiling", "--feature-gates=A=true", "--disable-http2-serving=false", "--write-config-to=", "--kubeconfig=" + filepath.Join(t.TempDir(), "missing")})
	if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "--kubeconfig") {
		t.Fatalf("got %v, want an error about the kubeconfig, the only thing that is wrong", err)
	}
	for _, want := range []string{"--contention-profiling", "--feature-gates"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no warning of %s in %q", want, log.String())
		}
	}
}

// TestKubeletFields: each field of the published type is either acted on, refused, or warned of.
func TestKubeletFields(t *testing.T) {
	var fields []string
	for f := range reflect.TypeFor[kubeletv1beta1.KubeletConfiguration]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		fields = append(fields, name)
	}
	for _, n := range kubeletHonoured {
		if !slices.Contains(fields, n) {
			t.Errorf("%s is no field", n)
		}
		if _, both := kubeletUnsupported[n]; both {
			t.Errorf("%s is acted on and refused", n)
		}
	}
	for n := range kubeletUnsupported {
		if !slices.Contains(fields, n) {
			t.Errorf("%s is no field", n)
		}
	}
}

func TestDisabledControllers(t *testing.T) {
	for _, tt := range []struct {
		list string
		has  string
		not  string
	}{
		{"*", "", "job-controller"},
		{"*,-job", "job-controller", "deployment-controller"},
		{"*,bootstrapsigner,tokencleaner,-attachdetach", "", "token-cleaner-controller"},
		{"job-controller", "deployment-controller", "job-controller"},
	} {
		got, err := disabledControllers(strings.Split(tt.list, ","))
		if err != nil || tt.has != "" && !slices.Contains(got, tt.has) || slices.Contains(got, tt.not) {
			t.Errorf("%s: disabled %v, %v", tt.list, got, err)
		}
	}
}
