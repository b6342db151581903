#!/bin/sh
# A machine that joins by kubeadm, in a network and mount namespace of its own: runtime, kubelet
# and kubeadm as on any host, but for a stand-in of systemctl, which starts the kubelet as
# kubeadm's unit file does. It says "joined" and then waits until its input ends.
# usage: kubeadm-join.sh DIR SKIFF KUBEADM KUBELET... -- SERVER TOKEN HASH NODE
set -eu
dir=$1 skiff=$2 kubeadm=$3
shift 3
kubelet=
while [ "$1" != -- ]; do kubelet="$kubelet $1"; shift; done
shift
server=$1 token=$2 hash=$3 node=$4
group=skiff-e2e-kubeadm
mkdir -p "$dir/bin" "$dir/patches" /etc/kubernetes /var/lib/kubelet
mount -t tmpfs none /etc/kubernetes
mount -t tmpfs none /var/lib/kubelet
mount --make-rshared /var/lib/kubelet
mkdir /etc/kubernetes/manifests
for h in /sys/fs/cgroup/*/; do
	[ -e "$h/cgroup.procs" ] || continue
	mkdir -p "$h/$group"
	for f in cpuset.mems cpuset.cpus; do
		if [ -e "$h/$group/$f" ]; then cat "$h/$f" > "$h/$group/$f"; fi
	done
done
cat > "$dir/patches/kubeletconfiguration+merge.yaml" <<END
cgroupDriver: cgroupfs
cgroupRoot: /$group
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
enforceNodeAllocatable: []
evictionHard: {memory.available: "1Mi", nodefs.available: "1%", imagefs.available: "1%"}
END
cat > "$dir/bin/systemctl" <<END
#!/bin/sh
case "\$1 \$2" in
"start kubelet" | "restart kubelet")
	. /var/lib/kubelet/kubeadm-flags.env
	# Restart=always
	while [ ! -e "$dir/stop" ]; do
		$kubelet --bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf \
			--config=/var/lib/kubelet/config.yaml \$KUBELET_KUBEADM_ARGS >> "$dir/kubelet.log" 2>&1 &
		echo \$! > "$dir/kubelet.pid"
		wait \$! || true
		sleep 0.5
	done > /dev/null 2>&1 & ;;
esac
END
chmod +x "$dir/bin/systemctl"
runtime="$skiff containers --root $dir/r --bridge skka --cgroup-root /$group-containers"
$runtime > "$dir/containers.log" 2>&1 &
pid=$!
while [ ! -S "$dir/r/run/cri.sock" ]; do sleep 0.05; kill -0 $pid || { cat "$dir/containers.log"; exit 1; }; done
PATH=$dir/bin:$PATH "$kubeadm" join "${server#https://}" --token "$token" --discovery-token-ca-cert-hash "$hash" --node-name "$node" \
	--cri-socket "unix://$dir/r/run/cri.sock" --patches "$dir/patches" --ignore-preflight-errors=all > "$dir/kubeadm.log" 2>&1 || {
	echo failed
	cat "$dir/kubeadm.log"
	[ ! -e "$dir/kubelet.log" ] || tail -n 20 "$dir/kubelet.log"
}
[ ! -e /etc/kubernetes/kubelet.conf ] || echo joined
cat > /dev/null
touch "$dir/stop"
[ ! -e "$dir/kubelet.pid" ] || kill "$(cat "$dir/kubelet.pid")" || true
kill $pid
wait $pid || true
$runtime --down
find /sys/fs/cgroup/ -depth -type d -path "*/$group*" -exec rmdir {} + 2> /dev/null || true
