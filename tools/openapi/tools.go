//go:build tools

// Package tools keeps the generator in go.mod.
package tools

import _ "k8s.io/kube-openapi/cmd/openapi-gen"
