package main

import (
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// Fields of a KubeletConfiguration by what becomes of them.
var (
	// kubeletHonoured are acted on.
	kubeletHonoured = strings.Fields(`staticPodPath podLogsDir address port tlsCertFile tlsPrivateKeyFile tlsCipherSuites tlsMinVersion
		authentication authorization healthzPort healthzBindAddress clusterDomain clusterDNS cgroupRoot cgroupDriver maxPods podPidsLimit
		resolvConf kubeAPIQPS kubeAPIBurst contentType systemReserved kubeReserved providerID registerWithTaints
		containerRuntimeEndpoint imageServiceEndpoint enableProfilingHandler staticPodURL staticPodURLHeader
		imageGCHighThresholdPercent imageGCLowThresholdPercent imageMinimumGCAge imageMaximumGCAge serializeImagePulls maxParallelImagePulls
		rotateCertificates serverTLSBootstrap`)
	// kubeletUnsupported are refused unless they have one of these values.
	kubeletUnsupported = map[string][]any{
		"enableServer": {true}, "registerNode": {true}, "runOnce": nil, "readOnlyPort": nil,
		"cpuManagerPolicy": {"none"}, "memoryManagerPolicy": {kubeletv1beta1.NoneMemoryManagerPolicy}, "topologyManagerPolicy": {kubeletv1beta1.NoneTopologyManagerPolicy},
		"qosReserved": nil, "reservedSystemCPUs": nil, "reservedMemory": nil, "systemReservedCgroup": nil, "kubeReservedCgroup": nil,
		"allowedUnsafeSysctls": nil, "defaultPodSysctls": nil, "seccompDefault": {false}, "podsPerCore": nil, "tracing": nil,
		"tlsCurvePreferences": nil, "userNamespaces": nil, "preloadedImagesVerificationAllowlist": nil,
		"shutdownGracePeriod": nil, "shutdownGracePeriodCriticalPods": nil, "shutdownGracePeriodByPodPriority": nil,
	}
)

// read takes over what a configuration file says; flags that are set count for more.
func (f *kubeletFlags) read(flags *pflag.FlagSet, log *slog.Logger) error {
	var file kubeletv1beta1.KubeletConfiguration
	if err := readConfig(f.file, "kubelet.config.k8s.io/v1beta1", "KubeletConfiguration", &file); err != nil {
		return err
	}
	ineffective, err := unhonoured(reflect.ValueOf(file))
	if err != nil {
		return fmt.Errorf("--config: %s: %w", f.file, err)
	}
	if len(ineffective) > 0 {
		log.Warn("settings have no effect", "file", f.file, "fields", strings.Join(ineffective, ","))
	}
	take := func(flag string, set bool, apply func()) {
		if set && !flags.Changed(flag) {
			apply()
		}
	}
	text := func(flag, value string, into *string) { take(flag, value != "", func() { *into = value }) }
	text("pod-manifest-path", file.StaticPodPath, &f.manifests)
	text("pod-logs-dir", file.PodLogsDir, &f.podLogs)
	text("address", file.Address, &f.address)
	text("tls-cert-file", file.TLSCertFile, &f.serving.cert)
	text("tls-private-key-file", file.TLSPrivateKeyFile, &f.serving.key)
	text("tls-min-version", file.TLSMinVersion, &f.serving.minVersion)
	text("client-ca-file", file.Authentication.X509.ClientCAFile, &f.clientCA)
	text("authorization-mode", string(file.Authorization.Mode), &f.authorization)
	text("healthz-bind-address", file.HealthzBindAddress, &f.healthzAddress)
	text("cluster-domain", file.ClusterDomain, &f.domain)
	text("cgroup-root", file.CgroupRoot, &f.cgroupRoot)
	text("cgroup-driver", file.CgroupDriver, &f.cgroupDriver)
	text("kube-api-content-type", file.ContentType, &f.client.contentType)
	text("provider-id", file.ProviderID, &f.providerID)
	text("container-runtime-endpoint", file.ContainerRuntimeEndpoint, &f.runtime)
	text("image-service-endpoint", file.ImageServiceEndpoint, &f.images)
	take("port", file.Port != 0, func() { f.port = file.Port })
	take("rotate-certificates", file.RotateCertificates, func() { f.rotate = true })
	take("rotate-server-certificates", file.ServerTLSBootstrap, func() { f.rotateServer = true })
	take("tls-cipher-suites", len(file.TLSCipherSuites) > 0, func() { f.serving.ciphers = file.TLSCipherSuites })
	take("anonymous-auth", file.Authentication.Anonymous.Enabled != nil, func() { f.anonymous = *file.Authentication.Anonymous.Enabled })
	take("authentication-token-webhook", file.Authentication.Webhook.Enabled != nil, func() { f.webhook = *file.Authentication.Webhook.Enabled })
	take("healthz-port", file.HealthzPort != nil, func() { f.healthzPort = *file.HealthzPort })
	take("cluster-dns", len(file.ClusterDNS) > 0, func() { f.dns = file.ClusterDNS })
	take("max-pods", file.MaxPods != 0, func() { f.maxPods = file.MaxPods })
	take("pod-max-pids", file.PodPidsLimit != nil, func() { f.podPids = *file.PodPidsLimit })
	take("resolv-conf", file.ResolverConfig != nil, func() { f.resolv = *file.ResolverConfig })
	take("kube-api-qps", file.KubeAPIQPS != nil, func() { f.client.qps = float32(*file.KubeAPIQPS) })
	take("kube-api-burst", file.KubeAPIBurst != 0, func() { f.client.burst = int(file.KubeAPIBurst) })
	take("system-reserved", len(file.SystemReserved) > 0, func() { f.systemReserve = file.SystemReserved })
	take("kube-reserved", len(file.KubeReserved) > 0, func() { f.kubeReserve = file.KubeReserved })
	take("register-with-taints", len(file.RegisterWithTaints) > 0, func() { f.registerTaints = file.RegisterWithTaints })
	f.policies.read(&file, take)
	if p := file.EnableProfilingHandler; p != nil {
		f.profiling = *p
	}
	return nil
}

// unhonoured returns the fields that are set without effect, or an error about one that
// asks for what is not supported.
func unhonoured(config reflect.Value) (ineffective []string, err error) {
	for i := range config.NumField() {
		name, _, _ := strings.Cut(config.Type().Field(i).Tag.Get("json"), ",")
		v := config.Field(i)
		if name == "" || v.IsZero() || slices.Contains(kubeletHonoured, name) {
			continue
		}
		if v.Kind() == reflect.Pointer {
			v = v.Elem()
		}
		harmless, unsupported := kubeletUnsupported[name]
		switch {
		case !unsupported:
			ineffective = append(ineffective, name)
		case !slices.Contains(harmless, v.Interface()):
			return nil, fmt.Errorf("%s is not supported; leave it out", name)
		}
	}
	return ineffective, nil
}
