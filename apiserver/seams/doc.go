// Package seams is where the parts of the API server meet: the interfaces by which
// authentication, authorization, admission, allocation, custom endpoints and
// CustomResourceDefinitions plug into the generic server (apiserver, apiserver/rest).
//
// Owns: the contracts. Must not: hold state, do I/O, import any implementation.
//
// Authentication and authorization need no interface of ours: they are
// k8s.io/apiserver's authenticator.Request and authorizer.Authorizer.
package seams
