package main

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// joins is what happens on the machine and in the cluster, in order.
func (r *kubeadmRun) joins(ctx context.Context, join []string) error {
	server := strings.TrimPrefix(join[3], "https://")
	token, hash, _ := strings.Cut(join[len(join)-1], "@")
	steps := []struct {
		name   string
		within time.Duration
		again  bool
		do     func(context.Context) error
	}{
		{"systemd has started the machine, containerd serves", 15 * time.Minute, true, r.booted},
		{"the pods' images are in containerd", 5 * time.Minute, false, r.script("ctr -n k8s.io images import /root/images.tar && ctr -n k8s.io images ls -q")},
		{"kubeadm join, all preflight checks: exit 0", 10 * time.Minute, false, func(ctx context.Context) error {
			return r.kubeadm(ctx, "join.log", "kubeadm join "+server+" --token "+token+" --discovery-token-ca-cert-hash "+hash)
		}},
		{"systemd says that the kubelet is active", time.Minute, true, r.script("systemctl is-active kubelet && systemctl is-enabled kubelet && test ! -e /etc/kubernetes/bootstrap-kubelet.conf")},
		{"its client certificate is by TLS bootstrap", time.Minute, true, r.clientCertificate},
		{"its serving certificate is the cluster's", 3 * time.Minute, true, r.servingCertificate},
		{"the machine's pod network (CNI) has the node's pod CIDR", time.Minute, true, r.podNetwork},
		{"the node is Ready", 5 * time.Minute, true, r.ready},
		{"a pod runs there, in systemd's control groups", 5 * time.Minute, true, r.pod},
		{"the server reaches the pod", 2 * time.Minute, true, r.reach},
		{"kube-proxy has started with the cluster's ConfigMap", 2 * time.Minute, false, r.startProxy},
		// Active alone is not enough: its rules must be there.
		{"kube-proxy is active in nftables mode and has written its rules", 3 * time.Minute, true, r.script("systemctl is-active kube-proxy && test $(busybox wget -q -O - http://127.0.0.1:10249/proxyMode) = nftables && nft list table ip kube-proxy | grep -q default/machine")},
		{"a pod of the machine reaches a Service of the server's node by its name", 3 * time.Minute, true, r.serviceThere},
		{"the server reaches a Service of the machine's pod", 2 * time.Minute, true, r.serviceHere},
		{"kubectl logs", 2 * time.Minute, true, r.expect("hello v1 on on-machine serves port 8080", "logs", "on-machine", "-c", "hello")},
		{"kubectl exec", 2 * time.Minute, true, r.expect("on-machine uid=0", "exec", "on-machine", "-c", "shell", "--", "/bin/sh", "-c", "echo $(hostname) $(id)")},
		{"kubectl delete pod", 3 * time.Minute, false, r.expect("deleted", "delete", "pod", "on-machine", "on-first", "--timeout=150s")},
		{"kubeadm reset -f: exit 0", 5 * time.Minute, false, func(ctx context.Context) error { return r.kubeadm(ctx, "reset.log", "kubeadm reset -f") }},
		{"nothing of the node is left on the machine", time.Minute, true, r.script("! systemctl is-active kubelet && test ! -e /etc/kubernetes/kubelet.conf && test ! -e /var/lib/kubelet/config.yaml && test -z \"$(ctr -n k8s.io tasks ls -q)\"")},
		{"kubectl delete node", time.Minute, false, r.expect("deleted", "delete", "node", machineName)},
	}
	for _, s := range steps {
		within := s.within
		once := func(ctx context.Context) error { return s.do(ctx) }
		var err error
		if s.again {
			err = r.eventually(ctx, within, s.name, once)
		} else {
			short, cancel := context.WithTimeout(ctx, within)
			if err = once(short); err == nil {
				r.say("%s", s.name)
			}
			cancel()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

func (r *kubeadmRun) script(text string) func(context.Context) error {
	return func(ctx context.Context) error {
		out, err := r.m.run(ctx, text)
		if err != nil {
			return fmt.Errorf("%s: %w: %s", text, err, out)
		}
		return nil
	}
}

// booted asks for what this run is about: an init that is systemd, cgroup v2 and nothing else, version 2 of containerd.
func (r *kubeadmRun) booted(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	out, err := r.m.run(ctx, "cat /proc/1/comm && stat -f -c %T /sys/fs/cgroup && systemctl is-active containerd && ctr version")
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	if f := strings.Fields(out); len(f) < 3 || f[0] != "systemd" || f[1] != "cgroup2fs" {
		return fmt.Errorf("the machine is of another kind: %q", out)
	}
	return nil
}

// kubeadm keeps what it says.
func (r *kubeadmRun) kubeadm(ctx context.Context, file, command string) error {
	out, err := r.m.run(ctx, command)
	if err := os.WriteFile(filepath.Join(r.out, file), []byte(out+"\n"), 0o600); err != nil {
		return err
	}
	if err != nil {
		return fmt.Errorf("%w:\n%s", err, out)
	}
	for _, line := range strings.Split(out, "\n") {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "[WARNING") {
			r.say("  it warns: %s", line)
		}
	}
	return nil
}

// clientCertificate checks the certificate that the kubelet asked for: the node's, of the cluster's CA.
func (r *kubeadmRun) clientCertificate(ctx context.Context) error {
	text, err := r.m.run(ctx, "cat /var/lib/kubelet/pki/kubelet-client-current.pem")
	if err != nil {
		return fmt.Errorf("%w: %s", err, text)
	}
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return errors.New("kubelet-client-current.pem has no PEM block")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return err
	}
	ca, err := r.m.run(ctx, "cat /etc/kubernetes/pki/ca.crt")
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(ca)) {
		return errors.New("/etc/kubernetes/pki/ca.crt has no certificate")
	}
	if _, err := cert.Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return err
	}
	if cert.Subject.CommonName != "system:node:"+machineName || !slices.Equal(cert.Subject.Organization, []string{"system:nodes"}) {
		return fmt.Errorf("the client certificate is for %s", cert.Subject)
	}
	return r.signed(ctx, "kubernetes.io/kube-apiserver-client-kubelet", "system:bootstrap:")
}

func (r *kubeadmRun) servingCertificate(ctx context.Context) error {
	return r.signed(ctx, "kubernetes.io/kubelet-serving", "system:node:"+machineName)
}

// signed finds a request for a certificate that was approved and answered.
func (r *kubeadmRun) signed(ctx context.Context, signer, user string) error {
	out, err := r.kube(ctx, "get", "csr", "-o", `jsonpath={range .items[*]}{.spec.signerName} {.spec.username} {.status.conditions[*].type} {.status.certificate}{"\n"}{end}`)
	if err != nil {
		return err
	}
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) == 4 && f[0] == signer && strings.HasPrefix(f[1], user) && f[2] == "Approved" {
			return nil
		}
	}
	return fmt.Errorf("no request of %s to %s was signed:\n%s", user, signer, out)
}

func (r *kubeadmRun) podNetwork(ctx context.Context) error {
	cidr, err := r.kube(ctx, "get", "node", machineName, "-o", "jsonpath={.spec.podCIDR}")
	if err != nil {
		return err
	}
	if cidr == "" {
		return errors.New("the node has no pod CIDR")
	}
	return r.script("mkdir -p /etc/cni/net.d && cat > /etc/cni/net.d/10-pods.conflist <<'END'\n" + bridgeConflist(cidr) + "END\n")(ctx)
}

func (r *kubeadmRun) ready(ctx context.Context) error {
	out, err := r.kube(ctx, "get", "node", machineName, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status} {.status.nodeInfo.kubeletVersion} {.status.nodeInfo.containerRuntimeVersion} {.status.nodeInfo.osImage}, {.status.nodeInfo.kernelVersion}`)
	if err != nil {
		return err
	}
	kind, ok := strings.CutPrefix(out, "True ")
	if !ok {
		return fmt.Errorf("it is not: %s", out)
	}
	r.say("  %s", kind)
	return nil
}

// expect wants a text in what kubectl says.
func (r *kubeadmRun) expect(text string, args ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		out, err := r.kube(ctx, args...)
		if err != nil {
			return err
		}
		if !strings.Contains(out, text) {
			return fmt.Errorf("kubectl %s says %q, not %q", strings.Join(args, " "), out, text)
		}
		return nil
	}
}
