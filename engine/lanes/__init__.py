"""One lane per kind of work: vad, stt, turn, chat, tts."""
