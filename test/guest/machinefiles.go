package main

import (
	"crypto/sha256"
	"fmt"
)

func sum(text string) string { return fmt.Sprintf("%x", sha256.Sum256([]byte(text)))[:16] }

// runScript runs a script that it reads, with no input, and says how that ended.
const runScript = `#!/bin/bash
script=$(cat)
cd /root
HOME=/root bash -c "$script" < /dev/null 2>&1
echo "
exit $?"
`

// machineTexts make of Debian a machine as kubeadm's documentation wants one.
var machineTexts = map[string]string{
	"etc/hostname":                    machineName + "\n",
	"etc/hosts":                       "127.0.0.1 localhost\n" + machineAddress + " " + machineName + "\n",
	"etc/resolv.conf":                 "nameserver " + hostAddress + "\n",
	"etc/machine-id":                  "4c1f5f0e8d5b4b1f9a6d2e7c3b8a9f10\n",
	"etc/fstab":                       "/dev/vda / ext4 defaults 0 0\n",
	"etc/modules-load.d/cluster.conf": "virtio_net\noverlay\nbr_netfilter\n",
	"etc/sysctl.d/cluster.conf":       "net.ipv4.ip_forward = 1\nnet.bridge.bridge-nf-call-iptables = 1\n",
	"etc/crictl.yaml":                 "runtime-endpoint: unix:///run/containerd/containerd.sock\n",
	"usr/local/sbin/run-script":       runScript,
	"etc/systemd/system/link.service": `[Unit]
Description=The machine's address
After=systemd-modules-load.service
Before=network.target
Wants=network.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/ip link set eth0 up
ExecStart=/bin/ip address add ` + machineAddress + `/24 dev eth0
ExecStart=/bin/ip route add default via ` + hostAddress + `
[Install]
WantedBy=multi-user.target
`,
	"etc/systemd/system/scripts.service": `[Unit]
Description=What the host asks for
After=link.service containerd.service
[Service]
ExecStart=/usr/bin/socat -t 3600 TCP-LISTEN:` + scriptPort + `,reuseaddr,fork EXEC:/usr/local/sbin/run-script
[Install]
WantedBy=multi-user.target
`,
	// Debian's unit; the program is version 2, which kubelets of today ask for.
	"etc/systemd/system/containerd.service.d/version2.conf": `[Service]
ExecStart=
ExecStart=/usr/local/bin/containerd
Environment=PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
TimeoutStartSec=10min
`,
	"etc/containerd/config.toml": `version = 3
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri"]
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "` + pauseImage + `"
[plugins."io.containerd.cri.v1.runtime"]
  disable_apparmor = true
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  SystemdCgroup = true
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["/usr/lib/cni"]
  conf_dir = "/etc/cni/net.d"
`,
	// The kubelet's unit in the form that kubeadm expects: it starts again until kubeadm has written its files.
	"etc/systemd/system/kubelet.service": `[Unit]
Description=kubelet
Wants=network-online.target
After=network-online.target containerd.service
[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf"
Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS
Restart=always
StartLimitInterval=0
RestartSec=10
[Install]
WantedBy=multi-user.target
`,
	// kubeadm runs it as a DaemonSet, of an image; here it is a unit, with the same files.
	"etc/systemd/system/kube-proxy.service": `[Unit]
Description=kube-proxy
[Service]
ExecStart=/usr/bin/kube-proxy --config=/var/lib/kube-proxy/config.conf
Restart=always
RestartSec=5
`,
}

// machineLinks enable units, and switch off what the machine has no use for.
var machineLinks = map[string]string{
	"etc/systemd/system/multi-user.target.wants/link.service":    "/etc/systemd/system/link.service",
	"etc/systemd/system/multi-user.target.wants/scripts.service": "/etc/systemd/system/scripts.service",
	"etc/systemd/system/multi-user.target.wants/kubelet.service": "/etc/systemd/system/kubelet.service",
	"etc/systemd/system/default.target":                          "/lib/systemd/system/multi-user.target",
	"etc/systemd/system/serial-getty@ttyS0.service":              "/dev/null",
	"etc/systemd/system/getty@tty1.service":                      "/dev/null",
}

// bridgeConflist is what the machine's administrator installs after the join: the pod network.
func bridgeConflist(podCIDR string) string {
	return `{"cniVersion": "1.0.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "ranges": [[{"subnet": "` + podCIDR + `"}]]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}
]}
`
}
