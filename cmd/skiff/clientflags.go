package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	componentv1 "k8s.io/component-base/config/v1alpha1"

	"github.com/skiff-k8s/skiff/cluster"
)

// client are upstream's flags of how a component reaches the API server.
type client struct {
	kubeconfig, master string
	contentType        string
	qps                float32
	burst              int
}

func (c *client) bind(flags *pflag.FlagSet, qps float32, burst int) {
	flags.StringVar(&c.kubeconfig, "kubeconfig", "", "kubeconfig file of the component's user")
	flags.StringVar(&c.contentType, "kube-api-content-type", runtime.ContentTypeProtobuf, "content type of requests")
	flags.Float32Var(&c.qps, "kube-api-qps", qps, "requests a second")
	flags.IntVar(&c.burst, "kube-api-burst", burst, "requests at once")
}

func (c *client) bindMaster(flags *pflag.FlagSet) {
	flags.StringVar(&c.master, "master", "", "URL of the API server; overrides the kubeconfig's")
}

func (c *client) config() (*rest.Config, error) {
	if c.kubeconfig == "" && c.master == "" {
		return nil, fmt.Errorf("--kubeconfig is required: it says where the API server is")
	}
	cfg, err := clientConfig("kubeconfig", c.kubeconfig, c.master)
	if err != nil {
		return nil, err
	}
	cfg.QPS, cfg.Burst = c.qps, c.burst
	cfg.ContentType = c.contentType
	cfg.AcceptContentTypes = c.contentType + "," + runtime.ContentTypeJSON
	return cfg, nil
}

// clientConfig reads a kubeconfig file that a flag names.
func clientConfig(name, file, master string) (*rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags(master, file)
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", name, err)
	}
	cfg.UserAgent = "skiff"
	cfg.ContentType = runtime.ContentTypeProtobuf
	cfg.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	return cfg, nil
}

// election are upstream's flags of leader election.
type election struct {
	on                  bool
	lock                string
	namespace, name     string
	lease, renew, retry time.Duration
}

func (e *election) bind(flags *pflag.FlagSet, name string) {
	flags.BoolVar(&e.on, "leader-elect", true, "work only while holding the Lease")
	flags.StringVar(&e.lock, "leader-elect-resource-lock", "leases", "leases")
	flags.StringVar(&e.namespace, "leader-elect-resource-namespace", "kube-system", "namespace of the Lease")
	flags.StringVar(&e.name, "leader-elect-resource-name", name, "name of the Lease")
	flags.DurationVar(&e.lease, "leader-elect-lease-duration", 15*time.Second, "how long others wait for a leader that is silent")
	flags.DurationVar(&e.renew, "leader-elect-renew-deadline", 10*time.Second, "how long a leader tries to renew before it gives up")
	flags.DurationVar(&e.retry, "leader-elect-retry-period", 2*time.Second, "time between two tries")
}

func (e *election) config() (cluster.Election, error) {
	if err := oneOf("leader-elect-resource-lock", e.lock, "leases"); err != nil {
		return cluster.Election{}, err
	}
	if e.on && (e.lease <= e.renew || e.renew <= e.retry) {
		return cluster.Election{}, fmt.Errorf("--leader-elect-lease-duration=%s must be longer than --leader-elect-renew-deadline=%s, and that longer than --leader-elect-retry-period=%s", e.lease, e.renew, e.retry)
	}
	identity, err := cluster.ProcessIdentity()
	if err != nil {
		return cluster.Election{}, err
	}
	return cluster.Election{
		Off: !e.on, Namespace: e.namespace, Name: e.name, Identity: identity,
		LeaseDuration: e.lease, RenewDeadline: e.renew, RetryPeriod: e.retry,
	}, nil
}

// read takes over what a configuration file says.
func (e *election) read(c componentv1.LeaderElectionConfiguration) {
	if c.LeaderElect != nil {
		e.on = *c.LeaderElect
	}
	e.lock = orElse(c.ResourceLock, e.lock)
	e.namespace, e.name = orElse(c.ResourceNamespace, e.namespace), orElse(c.ResourceName, e.name)
	e.lease, e.renew, e.retry = orElse(c.LeaseDuration.Duration, e.lease), orElse(c.RenewDeadline.Duration, e.renew), orElse(c.RetryPeriod.Duration, e.retry)
}

// delegated are upstream's flags of a secure port whose users the API server knows.
type delegated struct {
	serving
	authentication, authorization string
	skipLookup, tolerate          bool
	clientCA                      string
	frontProxy                    frontProxyFlags
	public                        []string
	profiling                     bool
}

func (d *delegated) bind(flags *pflag.FlagSet, port uint16) {
	d.serving.bind(flags, port)
	flags.StringVar(&d.authentication, "authentication-kubeconfig", "", "kubeconfig to review tokens with; none: no token is accepted")
	flags.StringVar(&d.authorization, "authorization-kubeconfig", "", "kubeconfig to review access with; none: that of --authentication-kubeconfig")
	flags.BoolVar(&d.skipLookup, "authentication-skip-lookup", false, "do not ask the API server for the CA of clients' certificates")
	flags.BoolVar(&d.tolerate, "authentication-tolerate-lookup-failure", true, "serve although the API server does not tell the CA")
	flags.StringVar(&d.clientCA, "client-ca-file", "", "CA of clients' certificates")
	flags.BoolVar(&d.profiling, "profiling", true, "serve profiles of the process below /debug/pprof/ to who may read it")
	flags.StringSliceVar(&d.public, "authorization-always-allow-paths", []string{"/healthz", "/readyz", "/livez"}, "paths that are for all")
}

// delegatedAccepted is what upstream's delegated ports have besides.
var delegatedAccepted = append([]others{
	{"each request to the port is reviewed anew", "authentication-token-webhook-cache-ttl authorization-webhook-cache-authorized-ttl authorization-webhook-cache-unauthorized-ttl"},
	{"no proxy names users to this port", "requestheader-client-ca-file requestheader-allowed-names requestheader-username-headers requestheader-uid-headers requestheader-group-headers requestheader-extra-headers-prefix"},
}, servingAccepted...)

func (d *delegated) config(name string) (cluster.ServeConfig, error) {
	none := func(err error) (cluster.ServeConfig, error) { return cluster.ServeConfig{}, err }
	c := cluster.ServeConfig{Public: d.public, Profiling: d.profiling}
	var err error
	if c.Bind, err = d.addrPort(); err != nil {
		return none(err)
	}
	if c.Bind.Port() == 0 {
		return c, nil
	}
	if c.TLS, err = d.serving.config(name); err != nil {
		return none(err)
	}
	if _, c.ClientCA, err = authorities("client-ca-file", d.clientCA); err != nil {
		return none(err)
	}
	flag, file := "authentication-kubeconfig", d.authentication
	if d.authorization != "" {
		flag, file = "authorization-kubeconfig", d.authorization
	}
	if file == "" {
		return c, nil
	}
	cfg, err := clientConfig(flag, file, "")
	if err != nil {
		return none(err)
	}
	if c.Client, err = kubernetes.NewForConfig(cfg); err != nil {
		return none(fmt.Errorf("--%s: %w", flag, err))
	}
	c.LookUpCA = c.ClientCA == nil && !d.skipLookup
	c.NeedCA = !d.tolerate
	return c, nil
}

// hostname is the name that a node or process of this host goes by.
func hostname(override string) (string, error) {
	if override != "" {
		return override, nil
	}
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("find the host's name: %w; give --hostname-override", err)
	}
	return name, nil
}
