package main

import (
	"crypto"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/skiff-k8s/skiff/apiserver/audit"
	"github.com/skiff-k8s/skiff/apiserver/authn"
	"github.com/skiff-k8s/skiff/cluster"
)

// apiServerFlags are the flags of skiff kube-apiserver.
type apiServerFlags struct {
	serving   serving
	storage   storageFlags
	advertise string

	clientCA, tokens           string
	anonymous, bootstrapTokens bool
	frontProxy                 frontProxyFlags
	proxyCert, proxyKey        string
	kubeletCert, kubeletKey    string
	kubeletCA                  string

	tokenKey   string
	tokenKeys  []string
	issuers    []string
	audiences  []string
	jwksURI    string
	serviceIPs []string

	authorization    []string
	admit, notAdmit  []string
	privileged       bool
	inFlight, mutate int
	profiling, fair  bool
	audit            *audit.Options
	balance          balanceFlags
}

// frontProxyFlags are upstream's flags of proxies that name users in headers.
type frontProxyFlags struct {
	ca                         string
	names                      []string
	users, uids, groups, extra []string
}

func (f *frontProxyFlags) bind(flags *pflag.FlagSet) {
	flags.StringVar(&f.ca, "requestheader-client-ca-file", "", "CA of proxies that name users in headers")
	flags.StringSliceVar(&f.names, "requestheader-allowed-names", nil, "common names of these proxies; none: any that the CA signed")
	flags.StringSliceVar(&f.users, "requestheader-username-headers", nil, "headers that name the user")
	flags.StringSliceVar(&f.uids, "requestheader-uid-headers", nil, "headers of the user's UID")
	flags.StringSliceVar(&f.groups, "requestheader-group-headers", nil, "headers of the user's groups")
	flags.StringSliceVar(&f.extra, "requestheader-extra-headers-prefix", nil, "prefixes of headers of further properties")
}

func (f *frontProxyFlags) load() ([]byte, *authn.FrontProxy, error) {
	text, pool, err := authorities("requestheader-client-ca-file", f.ca)
	if err != nil || pool == nil {
		return nil, nil, err
	}
	if len(f.users) == 0 {
		return text, nil, nil // published for others; this server trusts no header
	}
	return text, &authn.FrontProxy{CAs: pool, Names: f.names, UserHeaders: f.users, UIDHeaders: f.uids, GroupHeaders: f.groups, ExtraPrefixes: f.extra}, nil
}

// admissionPlugins are those that always run.
var admissionPlugins = strings.Fields(`NamespaceLifecycle LimitRanger ServiceAccount NodeRestriction
	TaintNodesByCondition PodSecurity Priority DefaultTolerationSeconds DefaultStorageClass
	StorageObjectInUseProtection PersistentVolumeClaimResize RuntimeClass CertificateApproval
	CertificateSigning CertificateSubjectRestriction DefaultIngressClass PodTopologyLabels
	MutatingAdmissionPolicy MutatingAdmissionWebhook ValidatingAdmissionPolicy
	ValidatingAdmissionWebhook ResourceQuota`)

func kubeAPIServerCommand() *cobra.Command {
	return component{
		name: "kube-apiserver", short: "Run an API server alone, with upstream's flags",
		accepted: slices.Concat(servingAccepted, []others{
			{"features are at the defaults of the version that is served", "feature-gates emulated-version emulation-forward-compatible? min-compatibility-version runtime-config-emulation-forward-compatible?"},
			{"the watch cache holds all resources and sizes itself", "watch-cache? watch-cache-sizes"},
			{"what is stored is what upstream stores: protobuf, in etcd", "storage-backend storage-media-type storage-initialization-timeout"},
			{"the server has no such endpoint", "contention-profiling? enable-logs-handler? debug-socket-path"},
			{"metrics are served as they are", "allow-metric-labels allow-metric-labels-manifest disabled-metrics show-hidden-metrics-for-version"},
			{"requests end after a minute, watches when the client wants", "request-timeout min-request-timeout"},
			{"the server is alive as long as its parts are", "livez-grace-period"},
			{"collections are deleted one object after the other", "delete-collection-workers"},
			{"garbage collection is served, whoever collects", "enable-garbage-collector?"},
			{"ServiceAccount tokens are checked against the objects that they are bound to, and live as long as asked for", "service-account-lookup? service-account-extend-token-expiration? service-account-max-token-expiration"},
			{"kubelets are reached at their InternalIP first", "kubelet-preferred-address-types kubelet-timeout"},
			{"not-ready and unreachable nodes are tolerated for 300 s", "default-not-ready-toleration-seconds default-unreachable-toleration-seconds"},
			{"extension API servers are reached at their endpoints", "enable-aggregator-routing? aggregator-reject-forwarding-redirect?"},
			{"leases of the store are shared by keys of the same minute", "lease-reuse-duration-seconds"},
			{"the server's addresses are names enough", "external-hostname"},
			{"the server passes nothing on to its peers: all serve the same version", "peer-ca-file"},
			{"candidates elect among themselves", "coordinated-leadership-lease-duration coordinated-leadership-renew-deadline coordinated-leadership-retry-period"},
			{"it has no effect upstream either", "max-connection-bytes-per-sec"},
			{"what failed is sent to the audit webhook again after --audit-webhook-initial-backoff", "audit-webhook-batch-initial-backoff"},
			{"answers of webhooks are not asked for", "authentication-token-webhook-cache-ttl authentication-token-webhook-version authorization-webhook-cache-authorized-ttl authorization-webhook-cache-unauthorized-ttl authorization-webhook-version"},
		}, storageAccepted),
		refused: slices.Concat(servingRefused, []others{
			{"tokens of other issuers are not verified", "authentication-config authentication-token-webhook-config-file oidc-ca-file oidc-client-id oidc-groups-claim oidc-groups-prefix oidc-issuer-url oidc-required-claim oidc-signing-algs oidc-username-claim oidc-username-prefix"},
			{"Node and RBAC authorize", "authorization-config authorization-policy-file authorization-webhook-config-file"},
			{"what is stored is not encrypted", "encryption-provider-config encryption-provider-config-automatic-reload?"},
			{"admission plugins have their default configuration; enable webhooks and policies by API objects", "admission-control admission-control-config-file"},
			{"the server connects directly", "egress-selector-config-file"},
			{"browsers of other origins are not served", "cors-allowed-origins strict-transport-security-directives"},
			{"the API is that of the version that is served", "runtime-config"},
			{"node ports are 30000-32767 and the kubernetes Service has none", "service-node-port-range kubernetes-service-node-port"},
			{"a key in a file signs tokens", "service-account-signing-endpoint"},
			{"traces are not exported", "tracing-config-file"},
		}, storageRefused),
		bind: func(flags *pflag.FlagSet) func(*cobra.Command, *slog.Logger) error {
			var f apiServerFlags
			f.bind(flags)
			return func(cmd *cobra.Command, log *slog.Logger) error {
				c, err := f.config(flags, log)
				if err != nil {
					return err
				}
				return cluster.RunAPIServer(cmd.Context(), c)
			}
		},
	}.command()
}

func (f *apiServerFlags) bind(flags *pflag.FlagSet) {
	f.serving.bind(flags, 6443)
	f.storage.bind(flags)
	f.frontProxy.bind(flags)
	f.balance.bind(flags)
	f.audit = audit.NewOptions()
	f.audit.AddFlags(flags)
	flags.StringVar(&f.advertise, "advertise-address", "", "address that clients in the cluster are given; none: --bind-address, or this host's")
	flags.StringVar(&f.clientCA, "client-ca-file", "", "CA of users' certificates")
	flags.StringVar(&f.tokens, "token-auth-file", "", "CSV file of static tokens: token,user,uid[,\"group,group\"]")
	flags.BoolVar(&f.anonymous, "anonymous-auth", true, "take requests without credentials as system:anonymous's")
	flags.BoolVar(&f.bootstrapTokens, "enable-bootstrap-token-auth", false, "accept bootstrap tokens (Secrets in kube-system)")
	flags.StringVar(&f.proxyCert, "proxy-client-cert-file", "", "certificate shown to extension API servers")
	flags.StringVar(&f.proxyKey, "proxy-client-key-file", "", "its key")
	flags.StringVar(&f.kubeletCert, "kubelet-client-certificate", "", "certificate shown to kubelets")
	flags.StringVar(&f.kubeletKey, "kubelet-client-key", "", "its key")
	flags.StringVar(&f.kubeletCA, "kubelet-certificate-authority", "", "CA of kubelets' serving certificates; none: they are not verified")
	flags.StringVar(&f.tokenKey, "service-account-signing-key-file", "", "key that signs ServiceAccount tokens")
	flags.StringArrayVar(&f.tokenKeys, "service-account-key-file", nil, "keys, public or private, that verify ServiceAccount tokens")
	flags.StringArrayVar(&f.issuers, "service-account-issuer", nil, "issuer of ServiceAccount tokens; further ones are accepted")
	flags.StringSliceVar(&f.audiences, "api-audiences", nil, "audiences of tokens for this server; none: the issuers")
	flags.StringVar(&f.jwksURI, "service-account-jwks-uri", "", "where clients find the keys of ServiceAccount tokens; none: at this server")
	flags.StringSliceVar(&f.serviceIPs, "service-cluster-ip-range", nil, "CIDR of cluster IPs, one a family")
	flags.StringSliceVar(&f.authorization, "authorization-mode", []string{"Node", "RBAC"}, "Node,RBAC")
	flags.StringSliceVar(&f.admit, "enable-admission-plugins", nil, "admission plugins; those that there are always run")
	flags.StringSliceVar(&f.notAdmit, "disable-admission-plugins", nil, "admission plugins that must not run")
	flags.BoolVar(&f.privileged, "allow-privileged", true, "privileged containers may be asked for; Pod Security decides")
	flags.BoolVar(&f.profiling, "profiling", true, "serve profiles of the process below /debug/pprof/ to who may read it")
	flags.IntVar(&f.inFlight, "max-requests-inflight", 400, "reads at a time")
	flags.IntVar(&f.mutate, "max-mutating-requests-inflight", 200, "writes at a time")
	flags.BoolVar(&f.fair, "enable-priority-and-fairness", true, "share reads and writes at a time, taken together, by FlowSchemas and priority levels")
}

// config reads the files that the flags name.
func (f *apiServerFlags) config(flags *pflag.FlagSet, log *slog.Logger) (cluster.APIServerConfig, error) {
	c := cluster.APIServerConfig{
		Anonymous: f.anonymous, BootstrapTokens: f.bootstrapTokens, Audiences: f.audiences, JWKSURI: f.jwksURI,
		MaxInFlight: f.inFlight, MaxMutating: f.mutate, WithoutFairness: !f.fair, Profiling: f.profiling, Logger: log,
	}
	none := func(err error) (cluster.APIServerConfig, error) { return cluster.APIServerConfig{}, err }
	if err := required(flags, "service-account-issuer", "service-account-signing-key-file", "service-account-key-file", "service-cluster-ip-range"); err != nil {
		return none(err)
	}
	if err := f.refuse(); err != nil {
		return none(err)
	}
	var err error
	if c.Store, err = f.storage.config(); err != nil {
		return none(err)
	}
	if c.Bind, err = f.serving.addrPort(); err != nil {
		return none(err)
	}
	if c.Bind.Port() == 0 {
		return none(fmt.Errorf("--secure-port=0: an API server must listen; give a port from 1 to 65535"))
	}
	if c.Advertise, err = f.advertised(c.Bind.Addr()); err != nil {
		return none(err)
	}
	if c.Serving, err = f.serving.config("kube-apiserver", net.IP(c.Advertise.AsSlice()), net.IPv4(127, 0, 0, 1)); err != nil {
		return none(err)
	}
	if c.ClientCA, _, err = authorities("client-ca-file", f.clientCA); err != nil {
		return none(err)
	}
	if c.FrontProxyCA, c.FrontProxy, err = f.frontProxy.load(); err != nil {
		return none(err)
	}
	if c.Tokens, err = tokenFile("token-auth-file", f.tokens); err != nil {
		return none(err)
	}
	if c.TokenKey, err = privateKey("service-account-signing-key-file", f.tokenKey); err != nil {
		return none(err)
	}
	if c.TokenKeys, err = publicKeys("service-account-key-file", f.tokenKeys); err != nil {
		return none(err)
	}
	if err := f.balance.set(&c); err != nil {
		return none(err)
	}
	own := c.TokenKey.Public()
	c.TokenKeys = slices.DeleteFunc(c.TokenKeys, func(k crypto.PublicKey) bool {
		e, ok := k.(interface{ Equal(crypto.PublicKey) bool })
		return ok && e.Equal(own)
	})
	c.Issuer, c.FormerIssuers = f.issuers[0], f.issuers[1:]
	if c.ServiceCIDRs, err = prefixes("service-cluster-ip-range", f.serviceIPs); err != nil {
		return none(err)
	}
	if err := onePerFamily("service-cluster-ip-range", c.ServiceCIDRs); err != nil {
		return none(err)
	}
	if first := c.ServiceCIDRs[0]; first.Addr().Is6() != c.Advertise.Is6() {
		return none(fmt.Errorf("--service-cluster-ip-range=%s: the first range must be of the family of the advertised address %s; swap the ranges, or give --advertise-address", strings.Join(f.serviceIPs, ","), c.Advertise))
	}
	if c.Kubelets, err = f.kubelets(); err != nil {
		return none(err)
	}
	if c.Audit, err = f.audit.New(log.With("component", "audit")); err != nil {
		return none(err)
	}
	pair, err := certificatePair("proxy-client-cert-file", f.proxyCert, "proxy-client-key-file", f.proxyKey)
	if err != nil {
		return none(err)
	}
	if pair != nil {
		c.ExtensionServers = *pair
	}
	return c, nil
}

// refuse says what the server cannot be told.
func (f *apiServerFlags) refuse() error {
	modes := slices.Clone(f.authorization)
	slices.Sort(modes)
	if !slices.Equal(modes, []string{"Node", "RBAC"}) {
		return fmt.Errorf("--authorization-mode=%s is not supported; use Node,RBAC", strings.Join(f.authorization, ","))
	}
	for _, p := range f.admit {
		if !slices.Contains(admissionPlugins, p) {
			return fmt.Errorf("--enable-admission-plugins=%s: there is no such plugin; there are %s", p, strings.Join(admissionPlugins, ", "))
		}
	}
	for _, p := range f.notAdmit {
		if slices.Contains(admissionPlugins, p) {
			return fmt.Errorf("--disable-admission-plugins=%s is not supported: the plugin always runs; leave it out", p)
		}
	}
	if !f.privileged {
		return fmt.Errorf("--allow-privileged=false is not supported; label namespaces with pod-security.kubernetes.io/enforce instead")
	}
	return nil
}

func (f *apiServerFlags) advertised(bind netip.Addr) (netip.Addr, error) {
	if f.advertise != "" {
		a, err := netip.ParseAddr(f.advertise)
		if err != nil {
			return a, fmt.Errorf("--advertise-address=%s is no IP address", f.advertise)
		}
		return a, nil
	}
	if !bind.IsUnspecified() {
		return bind, nil
	}
	a, err := cluster.HostAddress()
	if err != nil {
		return a, fmt.Errorf("%w; give --advertise-address", err)
	}
	return a, nil
}

func (f *apiServerFlags) kubelets() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	pair, err := certificatePair("kubelet-client-certificate", f.kubeletCert, "kubelet-client-key", f.kubeletKey)
	if err != nil {
		return nil, err
	}
	if pair != nil {
		c.Certificates = []tls.Certificate{*pair}
	}
	_, c.RootCAs, err = authorities("kubelet-certificate-authority", f.kubeletCA)
	return c, err
}
