package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// matrix is all rows.
func matrix() []row {
	const own = "skiff"
	return []row{
		{n: 1, title: "skiff with upstream's scheduler", upstream: "kube-scheduler", skiff: "the rest", node: own,
			start: besides("kube-scheduler", func(l *lab) error { return l.startScheduler(l.twin("kube-scheduler")) })},
		{n: 2, title: "skiff with upstream's controller manager", upstream: "kube-controller-manager", skiff: "the rest", node: own,
			start: besides("kube-controller-manager", func(l *lab) error { return l.startControllerManager(l.twin("kube-controller-manager")) })},
		{n: 3, title: "skiff with upstream's kubelet and containerd as second node", upstream: "kubelet, containerd, kube-proxy of the second node", skiff: "the rest", node: "both",
			start: withSecond},
		{n: 4, title: "skiff with upstream's proxy", upstream: "kube-proxy", skiff: "the rest", node: own,
			start: besides("kube-proxy", func(l *lab) error { return l.startProxy(l.twin("kube-proxy")) })},
		{n: 5, title: "skiff on an external etcd of one member", upstream: "etcd", skiff: "the rest", node: own, start: onEtcd(1)},
		{n: 5, part: "-three", title: "skiff on an external etcd of three members, one of them killed", upstream: "etcd", skiff: "the rest", node: own, start: onEtcd(3)},
		{n: 5, part: "-kine", title: "skiff on kine with SQLite", upstream: "kine", skiff: "the rest", node: own, start: onKine},
		{n: 6, title: "upstream's control plane with skiff's scheduler", upstream: "etcd, kube-apiserver, kube-controller-manager", skiff: "kube-scheduler", node: own,
			start: beneath(nil, func(l *lab) error {
				return errors.Join(l.startControllerManager(l.twin("kube-controller-manager")), l.startScheduler(l.skiff, "kube-scheduler"))
			})},
		{n: 7, title: "upstream's control plane with skiff's controllers", upstream: "etcd, kube-apiserver, kube-scheduler", skiff: "kube-controller-manager", node: own,
			start: beneath(nil, func(l *lab) error {
				return errors.Join(l.startControllerManager(l.skiff, "kube-controller-manager"), l.startScheduler(l.twin("kube-scheduler")))
			})},
		{n: 8, title: "upstream's control plane and proxy with skiff's kubelet and runtime", upstream: "etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kube-proxy", skiff: "kubelet, runtime, DNS", node: own,
			start: beneath([]string{"kube-proxy"}, func(l *lab) error {
				return errors.Join(l.startControllerManager(l.twin("kube-controller-manager")), l.startScheduler(l.twin("kube-scheduler")), l.startProxy(l.twin("kube-proxy")))
			})},
		{n: 9, title: "upstream's control plane with skiff's proxy", upstream: "etcd, kube-apiserver, kube-controller-manager, kube-scheduler", skiff: "kube-proxy", node: own,
			start: beneath([]string{"kube-proxy"}, func(l *lab) error {
				return errors.Join(l.startControllerManager(l.twin("kube-controller-manager")), l.startScheduler(l.twin("kube-scheduler")), l.startProxy(l.skiff, "kube-proxy"))
			})},
		{n: 10, title: "upstream's API server on what skiff wrote, skiff's on what upstream wrote", upstream: "etcd, kube-apiserver", skiff: "kube-apiserver", node: "none",
			start: func(context.Context, *lab) error { return nil }, check: kinds},
	}
}

// besides is a cluster of skiff's without one component, which other runs.
func besides(component string, other func(*lab) error) func(context.Context, *lab) error {
	return func(ctx context.Context, l *lab) error {
		if err := l.bring(ctx, component); err != nil {
			return err
		}
		if err := other(l); err != nil {
			return err
		}
		if err := l.ready(ctx); err != nil {
			return err
		}
		return l.loadImages(ctx)
	}
}

// beneath is a node of skiff's, less some components, beneath upstream's API server and what
// others run.
func beneath(without []string, others func(*lab) error) func(context.Context, *lab) error {
	return func(ctx context.Context, l *lab) error {
		if err := l.bring(ctx, append([]string{"kube-apiserver", "kube-scheduler", "kube-controller-manager"}, without...)...); err != nil {
			return err
		}
		endpoint, err := l.startEtcd()
		if err != nil {
			return err
		}
		if err := l.startAPIServer(endpoint, l.twin("kube-apiserver")); err != nil {
			return err
		}
		if err := wait(ctx, 2*time.Minute, "the API server", func() error {
			_, err := l.kube(ctx, "", "get", "--raw", "/readyz")
			return err
		}); err != nil {
			return err
		}
		if err := others(l); err != nil {
			return err
		}
		if err := l.ready(ctx); err != nil {
			return err
		}
		return l.loadImages(ctx)
	}
}

// startScheduler runs a scheduler, upstream's or skiff's: they take the same flags.
func (l *lab) startScheduler(argv ...string) error {
	conf, err := l.kubeconfig("system:kube-scheduler")
	if err != nil {
		return err
	}
	_, err = l.start("kube-scheduler", append(argv, "--kubeconfig="+conf,
		"--authentication-kubeconfig="+conf, "--authorization-kubeconfig="+conf)...)
	return err
}

// startControllerManager runs a controller manager, upstream's or skiff's.
func (l *lab) startControllerManager(argv ...string) error {
	conf, err := l.kubeconfig("system:kube-controller-manager")
	if err != nil {
		return err
	}
	_, err = l.start("kube-controller-manager", append(argv, "--kubeconfig="+conf,
		"--authentication-kubeconfig="+conf, "--authorization-kubeconfig="+conf,
		"--allocate-node-cidrs", "--cluster-cidr=10.244.0.0/16", "--service-cluster-ip-range=10.96.0.0/16",
		"--service-account-private-key-file="+l.pki("sa.key"), "--root-ca-file="+l.pki("ca.crt"),
		"--cluster-signing-cert-file="+l.pki("ca.crt"), "--cluster-signing-key-file="+l.pki("ca.key"),
		"--controllers=*,bootstrapsigner,tokencleaner", "--use-service-account-credentials")...)
	return err
}

// startEtcd runs upstream's etcd on a local port.
func (l *lab) startEtcd() (endpoint string, err error) {
	endpoint = "http://127.0.0.1:2379"
	_, err = l.start("etcd", l.twin("etcd"), "--data-dir="+filepath.Join(l.work, "etcd"), "--log-level=warn",
		"--listen-client-urls="+endpoint, "--advertise-client-urls="+endpoint,
		"--listen-peer-urls=http://127.0.0.1:2380", "--initial-advertise-peer-urls=http://127.0.0.1:2380", "--initial-cluster=default=http://127.0.0.1:2380")
	return endpoint, err
}

// startAPIServer runs an API server, upstream's or skiff's, with kubeadm's flags.
func (l *lab) startAPIServer(endpoint string, argv ...string) error {
	_, err := l.start("kube-apiserver", append(argv, "--etcd-servers="+endpoint,
		"--advertise-address="+nodeAddress, "--secure-port=6443", "--allow-privileged",
		"--tls-cert-file="+l.pki("apiserver.crt"), "--tls-private-key-file="+l.pki("apiserver.key"),
		"--client-ca-file="+l.pki("ca.crt"), "--enable-bootstrap-token-auth",
		"--service-cluster-ip-range=10.96.0.0/16", "--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file="+l.pki("sa.pub"), "--service-account-signing-key-file="+l.pki("sa.key"),
		"--requestheader-client-ca-file="+l.pki("front-proxy-ca.crt"), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file="+l.pki("front-proxy-client.crt"), "--proxy-client-key-file="+l.pki("front-proxy-client.key"),
		"--kubelet-client-certificate="+l.pki("apiserver-kubelet-client.crt"), "--kubelet-client-key="+l.pki("apiserver-kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP,Hostname")...)
	return err
}

// startProxy runs the first node's proxy, upstream's or skiff's.
func (l *lab) startProxy(argv ...string) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	return l.startProxyOn(strings.ToLower(host), argv...)
}

func (l *lab) startProxyOn(node string, argv ...string) error {
	conf, err := l.kubeconfig("system:kube-proxy")
	if err != nil {
		return err
	}
	_, err = l.start("kube-proxy", append(argv, "--kubeconfig="+conf, "--proxy-mode=nftables", "--cluster-cidr=10.244.0.0/16",
		"--hostname-override="+node, "--conntrack-max-per-core=0", "--conntrack-min=0", "--oom-score-adj=0")...)
	return err
}
