"""The aiohttp application: realtime endpoint, health, version."""
