"""What engines that schedule themselves over a pool of KV blocks have in common."""
