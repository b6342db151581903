// Package rest serves resources: it turns requests into reads and writes of the watch
// cache by what each api.Resource declares.
//
// Owns: the table of served resources, the verbs, generic create, update, patch and
// delete with their order of defaulting, admission, validation and storing, and the
// encoding of answers. Must not: authenticate, authorize (but for create on update),
// know any particular resource beyond what the Kubernetes API itself singles out
// (namespaces).
package rest
