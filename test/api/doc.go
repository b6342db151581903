// Package api holds tests of the API's behaviour as scripts, one behaviour in each
// testdata/*.txtar. They run against our API server in this process, and with
// -kubeconfig against any other: an upstream kube-apiserver must pass the same files.
// What differs on purpose stands in testdata/deviations.txt with the reason.
//
// A script is the comment part of the archive, one command a line:
//
//	# text                        a comment
//	header NAME: VALUE            sent with the next request
//	METHOD PATH [FILE]            a request, its body a file of the archive whose
//	                              extension is its type: .json .yaml, for PATCH also
//	                              .jsonpatch .merge .strategic .apply
//	AWAIT PATH                    GET until the answer is 200
//	status CODE                   the answer's status
//	body FILE                     the answer contains this JSON: objects may have more
//	                              fields, lists must have as many elements, "*" is any
//	                              value, null is a missing field
//	message TEXT                  the answer's .message
//	text TEXT                     the answer's body contains TEXT
//	head NAME: TEXT               a response header contains TEXT (empty: is not there)
//	set VAR PATH                  $VAR is the answer's value at a dotted PATH
//	watch ID PATH                 begins a watch
//	event ID TYPE [FILE]          its next event
//	end ID                        the watch has ended
//
// $NS is a namespace of the script's own that is there when it begins.
package api
