package doctor

import (
	"context"

	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	backendv1 "github.com/xmtp-selfhosted/backend/proto/gen/xmtp/backend/v1"
)

// endpoint asks the public port what a client asks first.
func (d *doctor) endpoint(ctx context.Context, connection grpc.ClientConnInterface) {
	const area = "endpoint"
	ctx, cancel := context.WithTimeout(ctx, d.patience)
	defer cancel()
	health, err := healthv1.NewHealthClient(connection).Check(ctx, &healthv1.HealthCheckRequest{})
	if err != nil {
		d.bad(area, "is the gateway up, and does the proxy in front pass HTTP/2 to it? Name it by --endpoint, with --tls for HTTPS", "health cannot be asked: %s", d.without(err))
		return
	}
	if health.GetStatus() != healthv1.HealthCheckResponse_SERVING {
		d.bad(area, "the gateway waits for a ready instance of each role: look at their logs (docs/runbooks/RoleNotReady.md)", "it does not serve yet")
	} else {
		d.good(area, "it serves")
	}
	published, err := backendv1.NewConfigurationServiceClient(connection).GetConfiguration(ctx, &backendv1.GetConfigurationRequest{})
	if err != nil {
		d.bad(area, "does the proxy in front pass every path?", "the configuration cannot be read: %s", d.without(err))
		return
	}
	if expected := d.environment["XMTP_IDENTIFIER"]; expected != "" && published.GetIdentifier() != expected {
		d.bad(area, "does --endpoint lead to another deployment?", "it calls itself %q, XMTP_IDENTIFIER is %q", published.GetIdentifier(), expected)
		return
	}
	d.good(area, "%s, version %s", published.GetIdentifier(), published.GetServerVersion())
}
