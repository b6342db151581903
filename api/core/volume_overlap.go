package core

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// placedPath is a path in a volume and what puts a file there.
type placedPath struct{ path, source string }

func (p placedPath) String() string {
	if p.source == "" {
		return fmt.Sprintf("%q", p.path)
	}
	return fmt.Sprintf("%q (%s)", p.path, p.source)
}

// overlappingPaths warns where one file of a volume would take the place of
// another, or of a directory that another is in.
func (w *warnings) overlappingPaths(volumes []v1.Volume) {
	for i := range volumes {
		v := &volumes[i]
		check := func(what string, paths []placedPath) {
			for _, o := range overlaps(paths) {
				*w = append(*w, fmt.Sprintf("volume %q (%s): overlapping paths: %s", v.Name, what, o))
			}
		}
		if c := v.ConfigMap; c != nil {
			check(fmt.Sprintf("ConfigMap %q", c.Name), keyPaths(c.Items, ""))
		}
		if s := v.Secret; s != nil {
			check(fmt.Sprintf("Secret %q", s.SecretName), keyPaths(s.Items, ""))
		}
		if d := v.DownwardAPI; d != nil {
			check("DownwardAPI", filePaths(d.Items, ""))
		}
		if v.Projected == nil {
			continue
		}
		var all []placedPath
		for j := range v.Projected.Sources {
			s := &v.Projected.Sources[j]
			if *s == (v1.VolumeProjection{}) {
				*w = append(*w, fmt.Sprintf("volume %q (Projected) has no sources provided", v.Name))
			}
			all = append(all, projectedPaths(s)...)
		}
		check("Projected", all)
	}
}

func projectedPaths(s *v1.VolumeProjection) []placedPath {
	switch {
	case s.ConfigMap != nil && s.ConfigMap.Items != nil:
		return keyPaths(s.ConfigMap.Items, fmt.Sprintf("ConfigMap %q", s.ConfigMap.Name))
	case s.Secret != nil && s.Secret.Items != nil:
		return keyPaths(s.Secret.Items, fmt.Sprintf("Secret %q", s.Secret.Name))
	case s.DownwardAPI != nil && s.DownwardAPI.Items != nil:
		return filePaths(s.DownwardAPI.Items, "DownwardAPI")
	case s.ServiceAccountToken != nil:
		return []placedPath{{s.ServiceAccountToken.Path, "ServiceAccountToken"}}
	case s.ClusterTrustBundle != nil:
		name := s.ClusterTrustBundle.Name
		if name == nil {
			name = s.ClusterTrustBundle.SignerName
		}
		if name == nil {
			return nil // invalid
		}
		return []placedPath{{s.ClusterTrustBundle.Path, fmt.Sprintf("ClusterTrustBundle %q", *name)}}
	case s.PodCertificate != nil:
		return []placedPath{
			{s.PodCertificate.CertificateChainPath, "PodCertificate chain"},
			{s.PodCertificate.KeyPath, "PodCertificate key"},
			{s.PodCertificate.CredentialBundlePath, "PodCertificate credential bundle"},
		}
	}
	return nil
}

func keyPaths(items []v1.KeyToPath, source string) []placedPath {
	paths := make([]placedPath, len(items))
	for i := range items {
		paths[i] = placedPath{items[i].Path, source}
	}
	return paths
}

func filePaths(items []v1.DownwardAPIVolumeFile, source string) []placedPath {
	paths := make([]placedPath, len(items))
	for i := range items {
		paths[i] = placedPath{items[i].Path, source}
	}
	return paths
}

func overlaps(paths []placedPath) []string {
	var found []string
	var before []placedPath
	for _, p := range paths {
		if p.path = strings.TrimRight(p.path, "/"); p.path == "" {
			continue
		}
		for _, other := range before {
			if strings.HasPrefix(other.path+"/", p.path+"/") || strings.HasPrefix(p.path+"/", other.path+"/") {
				found = append(found, fmt.Sprintf("%s with %s", p, other))
			}
		}
		before = append(before, p)
	}
	return found
}
