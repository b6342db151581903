package containers

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// CRI has no call to load an image from a file, so the socket serves one of
// our own: the path goes in, the names of what was loaded come out, a line each.
const loadMethod = "/skiff.containers.v1.Images/Load"

type loader struct{ r *Runtime }

type loadService interface {
	load(context.Context, *wrapperspb.StringValue) (*wrapperspb.StringValue, error)
}

var loaderDesc = grpc.ServiceDesc{
	ServiceName: "skiff.containers.v1.Images",
	HandlerType: (*loadService)(nil),
	Methods: []grpc.MethodDesc{{
		MethodName: "Load",
		Handler: func(srv any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			var path wrapperspb.StringValue
			if err := decode(&path); err != nil {
				return nil, err
			}
			return srv.(loadService).load(ctx, &path)
		},
	}},
}

func (l *loader) load(ctx context.Context, path *wrapperspb.StringValue) (*wrapperspb.StringValue, error) {
	names, err := l.r.images.Load(ctx, path.GetValue())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, oneLine(err.Error()))
	}
	return wrapperspb.String(strings.Join(names, "\n")), nil
}

// Client speaks to a running runtime, for the command line.
type Client struct {
	conn    *grpc.ClientConn
	Runtime runtimeapi.RuntimeServiceClient
	Images  runtimeapi.ImageServiceClient
}

// Dial connects to the runtime at a socket; no connection is made before the first call.
func Dial(socket string) (*Client, error) {
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(32<<20)))
	if err != nil {
		return nil, fmt.Errorf("dial runtime: %w", err)
	}
	return &Client{conn: conn, Runtime: runtimeapi.NewRuntimeServiceClient(conn), Images: runtimeapi.NewImageServiceClient(conn)}, nil
}

// Close ends the connection.
func (c *Client) Close() error { return c.conn.Close() }

// LoadImages loads the images of a file or directory and returns their names.
func (c *Client) LoadImages(ctx context.Context, path string) ([]string, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("load images: %w", err)
	}
	var out wrapperspb.StringValue
	if err := c.conn.Invoke(ctx, loadMethod, wrapperspb.String(abs), &out); err != nil {
		return nil, fmt.Errorf("load images: %s", status.Convert(err).Message())
	}
	return strings.Split(out.GetValue(), "\n"), nil
}
