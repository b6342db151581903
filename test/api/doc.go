// Package api holds tests of the API's behaviour as scripts, one behaviour in each
// testdata/*.txtar. They run against our API server in this process, and every answer is
// compared with what upstream's kube-apiserver said, which stands beside each script in a
// .golden file (docs/howto/record-answers.md). With -kubeconfig they run against any other
// server, with -record too they keep its answers. What differs on purpose stands in
// testdata/deviations.txt with the reason.
//
// A script is the comment part of the archive, one command a line:
//
//	# text                        a comment
//	header NAME: VALUE            sent with the next request
//	as TOKEN                      the next request is by the user of this token; anonymous: nobody's
//	only POINTER…                 of the next answer only these parts of the body are
//	                              kept for comparison; -: nothing
//	METHOD PATH [BODY]            a request, its body a file of the archive whose
//	                              extension is its type: .json .yaml, for PATCH also
//	                              .jsonpatch .merge .strategic .apply; or JSON that stands
//	                              in the line, of another type if that stands before it
//	until CODE METHOD PATH [BODY] the request again and again until the status is CODE
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
