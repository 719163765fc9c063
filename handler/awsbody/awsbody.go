// Package awsbody keeps the AWS SDK from losing answers that begin early.
package awsbody

import (
	"context"
	"fmt"
	"io"

	"github.com/aws/smithy-go/middleware"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// Plain is an API option of SDK clients. It has the HTTP client read the bodies of requests
// rather than have them write themselves. The SDK closes a body when the answer begins, and
// one that writes itself then fails with io.EOF, for which net/http closes the connection:
// the answer is lost if the client has not come as far as to see that the body has ended.
// On a busy machine that was one call of thousands; the messages of a receive that ends so
// are hidden for the visibility timeout.
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
