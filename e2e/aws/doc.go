// Package aws has tests only: they hold deploy/cloudformation, deploy/terraform and
// deploy/aws.md to what the daemon does and to each other.
//
// The templates are worked out here, for the parameters that a test chooses, into what AWS
// would be asked for; that is compared with the code: the kinds of message that package
// queue parses, the SDK calls that the packages make, the constants that the queue's
// settings have to agree with. Rules are matched against sample messages by quamina, which
// is by the author of EventBridge's own matcher and has its semantics. Names and types of
// properties are checked against the published schemas.
//
// It is a module of its own, so that the daemon's go.mod does not get HCL and the
// schemas of all AWS resources. The files that it reads are outside of that module, and
// the go command does not notice when they change: run it with -count=1, as make does.
// Nothing here talks to AWS.
package aws
