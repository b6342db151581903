package main

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/skiff-k8s/skiff/apiserver/bootstrap"
	"github.com/skiff-k8s/skiff/cluster"
)

func TestExtraArgs(t *testing.T) {
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(policy, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := cluster.APIServerConfig{Anonymous: true, Issuer: "https://own", Profiling: true, Serving: &tls.Config{MinVersion: tls.VersionTLS12}, MaxMutating: 7}
	err := extraArgs(&c, map[string][]string{
		"anonymous-auth": {"false"}, "max-requests-inflight": {"800"}, "event-ttl": {"5m"}, "profiling": {"false"}, "service-account-issuer": {"https://a", "https://b"},
		"tls-min-version": {"VersionTLS13"}, "api-audiences": {"x,y"}, "audit-policy-file": {policy}, "audit-log-path": {filepath.Join(t.TempDir(), "audit.log")},
		"shutdown-delay-duration": {"20s"}, "goaway-chance": {"0.001"}, "peer-advertise-ip": {"2001:db8::1"}, "peer-advertise-port": {"8443"},
		"watch-cache":                {"true"}, // accepted, though it changes nothing
		"encryption-provider-config": {},       // asks for nothing
	})
	if err != nil {
		t.Fatal(err)
	}
	if c.Anonymous || c.MaxInFlight != 800 || c.MaxMutating != 7 || c.Profiling || c.Serving.MinVersion != tls.VersionTLS13 || strings.Join(c.Audiences, " ") != "x y" || c.Audit == nil || c.Store.EventTTL != 5*time.Minute {
		t.Errorf("%+v", c)
	}
	if c.ShutdownDelay != 20*time.Second || c.GoawayChance != 0.001 || c.Peer.String() != "[2001:db8::1]:8443" || c.Endpoints != bootstrap.Leased {
		t.Errorf("%+v", c)
	}
	if c.Issuer != "https://a" || strings.Join(c.FormerIssuers, " ") != "https://b https://own" {
		t.Errorf("issuers %s, %v", c.Issuer, c.FormerIssuers)
	}
}

func TestExtraArgsAreRefusedByName(t *testing.T) {
	for name, tt := range map[string]struct{ value, want string }{
		"no-such":                                 {"1", "--no-such: skiff kube-apiserver has no such flag"},
		"secure-port":                             {"1", "--secure-port: skiff up sets it itself"},
		"etcd-servers":                            {"http://a", "--etcd-servers: skiff up sets it itself"},
		"client-ca-file":                          {"/a", "--client-ca-file: skiff up sets it itself"},
		"service-cluster-ip-range":                {"10.0.0.0/16", "--service-cluster-ip-range: skiff up sets it itself"},
		"encryption-provider-config":              {"/a", "--encryption-provider-config"},
		"runtime-config":                          {"a=true", "--runtime-config"},
		"profiling":                               {"maybe", "--profiling=maybe: "},
		"max-requests-inflight":                   {"many", "--max-requests-inflight=many: "},
		"authorization-mode":                      {"AlwaysAllow", "--authorization-mode=AlwaysAllow is not supported"},
		"disable-admission-plugins":               {"NodeRestriction", "--disable-admission-plugins=NodeRestriction is not supported"},
		"token-auth-file":                         {"/nonexistent", "--token-auth-file"},
		"tls-min-version":                         {"VersionTLS10", "--tls-min-version"},
		"audit-policy-file":                       {"/nonexistent", "--audit-policy-file"},
		"event-ttl":                               {"0s", "--event-ttl=0s: want more than 0s"},
		"endpoint-reconciler-type":                {"magic", "--endpoint-reconciler-type"},
		"apiserver-count":                         {"0", "--apiserver-count=0: want 1 or more"},
		"shutdown-delay-duration":                 {"-1s", "--shutdown-delay-duration=-1s: want 0s or more"},
		"goaway-chance":                           {"0.5", "--goaway-chance=0.5: want 0 to 0.02"},
		"peer-advertise-ip":                       {"192.0.2.1", "--peer-advertise-ip and --peer-advertise-port: give both or neither"},
		"shutdown-watch-termination-grace-period": {"-1s", "--shutdown-watch-termination-grace-period=-1s: want 0s or more"},
	} {
		t.Run(name, func(t *testing.T) {
			c := cluster.APIServerConfig{Serving: &tls.Config{}}
			err := extraArgs(&c, map[string][]string{name: {tt.value}})
			if err == nil || !strings.HasPrefix(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, want %s", err, tt.want)
			}
		})
	}
}

// TestEveryFlagIsDecided: a flag of the API server is either taken or skiff up's own.
func TestEveryFlagIsDecided(t *testing.T) {
	own := strings.Fields(`advertise-address bind-address secure-port tls-cert-file tls-private-key-file cert-dir tls-sni-cert-key
		client-ca-file enable-bootstrap-token-auth proxy-client-cert-file proxy-client-key-file kubelet-client-certificate kubelet-client-key
		kubelet-certificate-authority service-account-signing-key-file service-cluster-ip-range requestheader-client-ca-file
		requestheader-allowed-names requestheader-username-headers requestheader-uid-headers requestheader-group-headers requestheader-extra-headers-prefix`)
	var f apiServerFlags
	flags := pflag.NewFlagSet("t", pflag.ContinueOnError)
	f.bind(flags)
	flags.VisitAll(func(x *pflag.Flag) {
		decided := extraFlag(x.Name)
		for _, o := range own {
			decided = decided || o == x.Name
		}
		if !decided && !strings.HasPrefix(x.Name, "etcd-") {
			t.Errorf("--%s is new: take it in extraArgs, or it is skiff up's own", x.Name)
		}
	})
	for _, name := range append(own, extraFlags...) {
		if flags.Lookup(name) == nil && kubeAPIServerCommand().Flags().Lookup(name) == nil {
			t.Errorf("--%s is no flag", name)
		}
	}
}
