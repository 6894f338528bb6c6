"""From an HTTP request to a request in flight: endpoints, processor, dispatcher, subscriptions, model files."""
