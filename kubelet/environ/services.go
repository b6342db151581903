package environ

import (
	"net"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// serviceVars are the variables by which containers find Services without DNS:
// {NAME}_SERVICE_HOST and _PORT, and the ones that Docker links had.
func serviceVars(services []*corev1.Service) map[string]string {
	out := map[string]string{}
	for _, s := range services {
		ip := s.Spec.ClusterIP
		if ip == "" || ip == corev1.ClusterIPNone || len(s.Spec.Ports) == 0 {
			continue
		}
		name := envName(s.Name)
		out[name+"_SERVICE_HOST"] = ip
		out[name+"_SERVICE_PORT"] = strconv.Itoa(int(s.Spec.Ports[0].Port))
		for i := range s.Spec.Ports {
			p := &s.Spec.Ports[i]
			port := strconv.Itoa(int(p.Port))
			if p.Name != "" {
				out[name+"_SERVICE_PORT_"+envName(p.Name)] = port
			}
			proto := string(p.Protocol)
			if proto == "" {
				proto = string(corev1.ProtocolTCP)
			}
			url := strings.ToLower(proto) + "://" + net.JoinHostPort(ip, port)
			if i == 0 {
				out[name+"_PORT"] = url
			}
			prefix := name + "_PORT_" + port + "_" + strings.ToUpper(proto)
			out[prefix] = url
			out[prefix+"_PROTO"] = strings.ToLower(proto)
			out[prefix+"_PORT"] = port
			out[prefix+"_ADDR"] = ip
		}
	}
	return out
}

func envName(s string) string {
	return strings.ToUpper(strings.ReplaceAll(s, "-", "_"))
}
