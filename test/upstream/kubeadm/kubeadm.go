//go:build upstream

// Package kubeadm pins upstream's kubeadm, whose nodes join clusters of skiff's.
package kubeadm

import _ "k8s.io/kubernetes/cmd/kubeadm"
