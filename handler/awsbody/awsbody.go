// Package awsbody keeps the AWS SDK from losing answers that begin early.
package awsbody

import (
	"context"
	"fmt"
	"io"

	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// Plain is an API option of SDK clients. It hides that a request's body can write itself
// (io.WriterTo), so net/http reads it instead. The SDK closes a body when the answer begins.
// One that writes itself then fails with io.EOF, and net/http closes the connection: the
// answer is lost unless the client has already seen the body's end. On a busy machine that
// was one call in thousands, and the messages of a receive that ends like this stay hidden
// for the visibility timeout.
// https://github.com/aws/smithy-go/blob/v1.28.8/transport/http/internal/io/safe.go
func Plain(stack *middleware.Stack) error {
	return stack.Build.Add(middleware.BuildMiddlewareFunc("PlainBody", func(ctx context.Context, in middleware.BuildInput, next middleware.BuildHandler) (middleware.BuildOutput, middleware.Metadata, error) {
		request, ok := in.Request.(*smithyhttp.Request)
		if !ok {
			return next.HandleBuild(ctx, in)
		}
		if body, ok := request.GetStream().(io.ReadSeeker); ok {
			plain, err := request.SetStream(struct{ io.ReadSeeker }{body})
			if err != nil {
				return middleware.BuildOutput{}, middleware.Metadata{}, fmt.Errorf("set body of request: %w", err)
			}
			in.Request = plain
		}
		return next.HandleBuild(ctx, in)
	}), middleware.After)
}
