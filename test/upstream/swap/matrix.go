package main

import (
	"context"
	"path/filepath"
)

// matrix is all rows.
func matrix() []row {
	return []row{
		{n: 1, title: "skiff with upstream's scheduler", upstream: "kube-scheduler", skiff: "the rest", node: "skiff", start: startRow1},
		{n: 2, title: "skiff with upstream's controller manager", upstream: "kube-controller-manager", skiff: "the rest", node: "skiff", start: startRow2},
	}
}

func startRow1(ctx context.Context, l *lab) error {
	if err := l.bring(ctx, "kube-scheduler"); err != nil {
		return err
	}
	if err := l.startScheduler(l.twin("kube-scheduler")); err != nil {
		return err
	}
	if err := l.ready(ctx); err != nil {
		return err
	}
	return l.loadImages(ctx)
}

func startRow2(ctx context.Context, l *lab) error {
	if err := l.bring(ctx, "kube-controller-manager"); err != nil {
		return err
	}
	if err := l.startControllerManager(l.twin("kube-controller-manager")); err != nil {
		return err
	}
	if err := l.ready(ctx); err != nil {
		return err
	}
	return l.loadImages(ctx)
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
